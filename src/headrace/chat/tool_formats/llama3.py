"""Llama 3.1 to 3.3: a bare JSON object with `name` and `parameters`, or one after `<|python_tag|>`."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.json_envelope import JsonEnvelope

LLAMA3 = ToolFormat(
    name="llama3",
    call=JsonEnvelope("parameters"),
    opens=("<|python_tag|>", "<|python_start|>"),
    separator="; ",
    close="<|python_end|>",
    bare=True,
    template_marks=('"parameters": dictionary of argument name and its value}',),
)
