"""Granite 3: a list of JSON objects after `<|tool_call|>`."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.json_envelope import JsonEnvelope

GRANITE = ToolFormat(
    name="granite",
    call=JsonEnvelope(),
    opens=("<|tool_call|>", "<tool_call>"),
    lead="[",
    separator=", ",
    tail="]",
    template_marks=("<|tool_call|>",),
)
