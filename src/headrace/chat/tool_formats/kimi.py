"""Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{json}<|tool_call_end|>`."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.xml_tags import XmlTags

_ARGUMENTS = "<|tool_call_argument_begin|>"

KIMI_K2 = ToolFormat(
    name="kimi_k2",
    call=XmlTags(before="functions.", after=_ARGUMENTS, ordinal=True, marks=(_ARGUMENTS,)),
    opens=("<|tool_calls_section_begin|>",),
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    close="<|tool_calls_section_end|>",
    template_marks=("<|tool_calls_section_begin|>",),
)
