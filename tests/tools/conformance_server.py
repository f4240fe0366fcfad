"""What the MCP conformance suite asks a server for, around the server of this package: `conformance_server.py
PORT`. Its fixture tools are served as those of a Headrace server are; what Headrace does not offer (prompts,
resources, requests to the client) is added to the same server."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount
from tool_servers import call_of

from headrace.tools.arguments import check_arguments
from headrace.tools.mcp.server import mcp_server
from headrace.tools.tool import ToolImage, ToolResult, ToolSpec, ToolUnavailable
from headrace.tools.toolbox import OwnTool, OwnTools

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
NONE: dict[str, Any] = {"type": "object", "properties": {}}


async def simple(arguments: Any, call: Any) -> ToolResult:
    return ToolResult(text="This is a simple text response for testing.")


async def image(arguments: Any, call: Any) -> ToolResult:
    return ToolResult(text="an image", images=(ToolImage("image/png", PNG),))


async def fails(arguments: Any, call: Any) -> ToolResult:
    raise ToolUnavailable("This tool intentionally returns an error for testing")


def own(name: str, run: Any) -> OwnTool:
    return OwnTool(ToolSpec(name=name, description=name, parameters=NONE), run)


OURS = [
    own("test_simple_text", simple),
    own("test_image_content", image),
    own("test_error_handling", fails),
]
"""Tools whose results are such as Headrace gives."""


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


def resource(uri: str, kind: str, content: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=kind, text=content))


def fields(name: str) -> dict[str, Any]:
    if name.endswith("defaults"):
        return {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
    if name.endswith("enums"):
        titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
        plain = ["option1", "option2", "option3"]
        return {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": plain, "enumNames": ["One", "Two", "Three"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
    return {"username": {"type": "string"}, "email": {"type": "string"}}


async def fixture(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult | None:
    """Tools that need more than Headrace's: notifications, requests to the client, other contents."""
    session, given = context.session, params.arguments or {}
    match params.name:
        case "test_audio_content":
            return types.CallToolResult(content=[types.AudioContent(data=WAV, mime_type="audio/wav")])
        case "test_embedded_resource":
            found = resource(
                "test://embedded-resource", "text/plain", "This is an embedded resource content."
            )
            return types.CallToolResult(content=[found])
        case "test_multiple_content_types":
            found = resource(
                "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
            )
            picture = types.ImageContent(data=PNG, mime_type="image/png")
            return types.CallToolResult(
                content=[types.TextContent(text="Multiple content types test:"), picture, found]
            )
        case "test_tool_with_logging":
            for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
                await session.send_log_message("info", said, related_request_id=context.request_id)
                await asyncio.sleep(0.05)
            return text("logged")
        case "test_tool_with_progress":
            for done in (0, 50, 100):
                await session.report_progress(done, 100)
                await asyncio.sleep(0.05)
            return text("done")
        case "test_sampling":
            content = types.TextContent(text=given.get("prompt", ""))
            message = types.SamplingMessage(role="user", content=content)
            answer = await session.create_message(
                [message], max_tokens=100, related_request_id=context.request_id
            )
            return text(f"LLM response: {answer.content.text}")
        case name if name.startswith("test_elicitation"):
            schema = {"type": "object", "properties": fields(name), "required": []}
            message = given.get("message", "Say who you are.")
            answer = await session.elicit_form(message, schema, related_request_id=context.request_id)
            return text(f"User response: action={answer.action}, content={answer.content}")
        case _:
            return None


OTHERS = [
    *(
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_tool_with_logging",
    ),
    *("test_tool_with_progress", "test_sampling", "test_elicitation", "test_elicitation_sep1034_defaults"),
    "test_elicitation_sep1330_enums",
]


def conformance_server() -> Any:
    server = mcp_server(OwnTools(OURS, check_arguments), lambda context: call_of())
    ours_list = server.get_request_handler("tools/list").handler
    ours_call = server.get_request_handler("tools/call").handler

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        found = (await ours_list(context, params)).tools
        more = [types.Tool(name=name, description=name, input_schema=NONE) for name in OTHERS]
        return types.ListToolsResult(tools=[*found, *more])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await fixture(context, params) or await ours_call(context, params)

    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    _add_resources(server)
    _add_prompts(server)
    return server


def _add_resources(server: Any) -> None:
    static = types.Resource(uri="test://static-text", name="text", mime_type="text/plain")

    async def listed(context: Any, params: Any) -> types.ListResourcesResult:
        binary = types.Resource(uri="test://static-binary", name="binary", mime_type="image/png")
        return types.ListResourcesResult(resources=[static, binary])

    async def templates(context: Any, params: Any) -> types.ListResourceTemplatesResult:
        one = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template")
        return types.ListResourceTemplatesResult(resource_templates=[one])

    async def read(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        if uri.endswith("binary"):
            found: Any = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
        elif uri.startswith("test://template/"):
            number = uri.split("/")[3]
            said = f'{{"id":"{number}","templateTest":true,"data":"Data for ID: {number}"}}'
            found = types.TextResourceContents(uri=uri, mime_type="application/json", text=said)
        else:
            said = "This is the content of the static text resource."
            found = types.TextResourceContents(uri=uri, mime_type="text/plain", text=said)
        return types.ReadResourceResult(contents=[found])

    async def nothing(context: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def complete(context: Any, params: Any) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=["paris", "park"], total=2))

    server.add_request_handler("resources/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, templates)
    server.add_request_handler("resources/read", types.ReadResourceRequestParams, read)
    server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, nothing)
    server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)
    server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)


def _add_prompts(server: Any) -> None:
    arguments = {
        "test_simple_prompt": (),
        "test_prompt_with_arguments": ("arg1", "arg2"),
        "test_prompt_with_embedded_resource": ("resourceUri",),
        "test_prompt_with_image": (),
    }

    async def listed(context: Any, params: Any) -> types.ListPromptsResult:
        prompts = [
            types.Prompt(
                name=name,
                description=name,
                arguments=[types.PromptArgument(name=one, required=True) for one in wanted],
            )
            for name, wanted in arguments.items()
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def get(context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        given = params.arguments or {}
        said: Any = types.TextContent(text="This is a simple prompt for testing.")
        match params.name:
            case "test_prompt_with_arguments":
                words = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
                said = types.TextContent(text=words)
            case "test_prompt_with_embedded_resource":
                said = resource(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            case "test_prompt_with_image":
                said = types.ImageContent(data=PNG, mime_type="image/png")
            case _:
                pass
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=said)])

    server.add_request_handler("prompts/list", types.PaginatedRequestParams, listed)
    server.add_request_handler("prompts/get", types.GetPromptRequestParams, get)


if __name__ == "__main__":
    manager = StreamableHTTPSessionManager(conformance_server())  # sampling and elicitation need sessions
    app = Starlette(routes=[Mount("/", app=manager.handle_request)], lifespan=lambda app: manager.run())
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
