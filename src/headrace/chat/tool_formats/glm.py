"""GLM 4.5 and later: `<tool_call>NAME` with an `<arg_key>` and an `<arg_value>` per argument."""

from __future__ import annotations

from headrace.chat.tool_formats.format import ToolFormat
from headrace.chat.tool_formats.parameters import Parameters

GLM = ToolFormat(
    name="glm",
    call=Parameters(
        after="\n",
        key="<arg_key>",
        value="</arg_key>\n<arg_value>",
        end="</arg_value>",
        gap="\n",
        last="",
        closes=("</tool_call>",),
    ),
    opens=("<tool_call>",),
    close="</tool_call>",
    gap="\n",
    template_marks=("<arg_key>",),
)
