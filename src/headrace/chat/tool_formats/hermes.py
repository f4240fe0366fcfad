"""Hermes 2 and 3, Qwen 2.5 and 3, and many others: `<tool_call>{json}</tool_call>`."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.json_envelope import JsonEnvelope

HERMES = ToolFormat(
    name="hermes",
    call=JsonEnvelope(),
    opens=("<tool_call>\n",),
    close="\n</tool_call>",
    gap="\n",
    template_marks=("<tool_call>",),
)
