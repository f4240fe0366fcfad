"""All tool call formats by name, and detection of a chat template's format."""

from __future__ import annotations

from headrace.chat.tool_formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.gemma import FUNCTION_GEMMA, GEMMA4
from headrace.chat.tool_formats.glm import GLM
from headrace.chat.tool_formats.gpt_oss import GPT_OSS, Harmony
from headrace.chat.tool_formats.granite import GRANITE
from headrace.chat.tool_formats.hermes import HERMES
from headrace.chat.tool_formats.kimi import KIMI_K2
from headrace.chat.tool_formats.llama3 import LLAMA3
from headrace.chat.tool_formats.mistral import MISTRAL, MISTRAL_ARGS
from headrace.chat.tool_formats.pythonic import LFM2, LLAMA4
from headrace.chat.tool_formats.qwen3_coder import QWEN3_CODER, SEED_OSS

Family = ToolFormat | Harmony

# The first format whose markers a template contains is chosen, so more specific formats come first.
_IN_ORDER: tuple[Family, ...] = (
    GPT_OSS,
    SEED_OSS,
    QWEN3_CODER,
    GLM,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    MISTRAL_ARGS,
    MISTRAL,
    FUNCTION_GEMMA,
    GEMMA4,
    GRANITE,
    LLAMA3,
    LLAMA4,
    LFM2,
    HERMES,
)
FAMILIES = {family.name: family for family in _IN_ORDER}


def tool_format_of(template_source: str) -> Family | None:
    """The format that a template uses; None if it shows no known one."""
    for family in _IN_ORDER:
        if all(mark in template_source for mark in family.template_marks):
            return family
    return None
