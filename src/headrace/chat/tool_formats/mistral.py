"""Mistral: `[TOOL_CALLS]` with a JSON list; since 2025 with a name and `[ARGS]` before each object."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat, short_id
from headrace.chat.tool_formats.json_envelope import JsonEnvelope
from headrace.chat.tool_formats.xml_tags import XmlTags

MISTRAL = ToolFormat(
    name="mistral",
    call=JsonEnvelope(),
    opens=("[TOOL_CALLS]",),
    lead="[",
    separator=", ",
    tail="]",
    template_marks=("[TOOL_CALLS]",),
    new_id=short_id,
)

MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    call=XmlTags(after="[ARGS]", between="[CALL_ID]", marks=("[ARGS]", "[CALL_ID]")),
    opens=("[TOOL_CALLS]",),
    template_marks=("[ARGS]",),
    new_id=short_id,
)
