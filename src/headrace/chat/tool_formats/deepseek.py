"""DeepSeek V3, R1 and V3.1: calls between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.xml_tags import XmlTags

_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    call=XmlTags(before=f"function{_SEPARATOR}", after="\n```json\n", last="\n```", marks=(_SEPARATOR,)),
    opens=(_OPEN,),
    begin=_BEGIN,
    end=_END,
    separator="\n",
    close=_CLOSE,
    template_marks=(_OPEN, "```json"),
)

DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    call=XmlTags(after=_SEPARATOR, marks=(_SEPARATOR,)),
    opens=(_OPEN,),
    begin=_BEGIN,
    end=_END,
    close=_CLOSE,
    template_marks=(_OPEN,),
)
