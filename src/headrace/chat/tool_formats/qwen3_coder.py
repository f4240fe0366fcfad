"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Seed-OSS: `<function=f>` with a `<parameter=…>` per argument."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.parameters import Parameters

_CALL = Parameters(
    before="<function=",
    after=">\n",
    key="<parameter=",
    value=">",
    end="</parameter>",
    frame="\n",
    gap="\n",
    last="</function>",
    closes=("</function>",),
)

QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    call=_CALL,
    opens=("<tool_call>\n",),
    close="\n</tool_call>",
    gap="\n",
    template_marks=("<tool_call>", "<function="),
)

SEED_OSS = ToolFormat(
    name="seed_oss",
    call=_CALL,
    opens=("<seed:tool_call>\n",),
    close="\n</seed:tool_call>",
    gap="\n",
    template_marks=("<seed:tool_call>",),
)
