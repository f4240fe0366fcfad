"""Google's official client (google-genai) against the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running, running_server
from vectors import DOCUMENTS, expected_vectors, same

genai = pytest.importorskip("google.genai", reason="make test-frameworks installs it")
types = genai.types

HERMES = "tools <tool_call>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Köln"}}\n</tool_call>'
THINK = "<think></think>"
MODEL = "fake/model"


class Recording(FakeTemplate):
    """Keeps the messages that it was given."""

    def render(self, messages: list[Any], **options: Any) -> str:
        self.messages = list(messages)
        return super().render(messages, **options)


@pytest.fixture
def serve() -> Iterator[Any]:
    opened: list[Any] = []

    def make(answer: str, source: str = "", **flags: Any) -> tuple[Any, Running]:
        model = FakeModel(engine=FakeEngine(answer, ends=True), template=Recording(source))
        context = running_server(model, **flags)
        server = context.__enter__()
        opened.append(context)
        return client_of(server), server

    yield make
    for context in opened:
        context.__exit__(None, None, None)


def client_of(server: Running, key: str = "none") -> Any:
    options = types.HttpOptions(base_url=server.url, timeout=20_000)
    return genai.Client(api_key=key, vertexai=False, http_options=options)


def weather(parameters: Any = None) -> Any:
    schema = parameters or types.Schema(
        type="OBJECT", properties={"town": types.Schema(type="STRING", min_length=1)}, required=["town"]
    )
    declared = types.FunctionDeclaration(name="weather", description="Of a town", parameters=schema)
    return types.Tool(function_declarations=[declared])


def test_an_answer(serve: Any) -> None:
    client, server = serve("Good day.")
    config = types.GenerateContentConfig(
        system_instruction="Be kind.", temperature=0, max_output_tokens=50, seed=3, stop_sequences=["\n"]
    )
    reply = client.models.generate_content(model=MODEL, contents="hello", config=config)
    assert reply.text == "Good day." and reply.model_version == MODEL
    [candidate] = reply.candidates
    assert candidate.finish_reason == types.FinishReason.STOP and candidate.content.role == "model"
    assert reply.usage_metadata.candidates_token_count == len("Good day.")
    assert reply.usage_metadata.total_token_count > reply.usage_metadata.prompt_token_count > 0
    assert [(one.role, one.content) for one in server.model.template.messages] == [
        ("system", "Be kind."),
        ("user", "hello"),
    ]


def test_a_stream_has_the_same_bytes(serve: Any) -> None:
    client, _ = serve("Good day, and another.")
    config = types.GenerateContentConfig(candidate_count=2, max_output_tokens=8)
    whole = client.models.generate_content(model=MODEL, contents="hello", config=config)
    texts = {0: "", 1: ""}
    events = list(client.models.generate_content_stream(model=MODEL, contents="hello", config=config))
    for event in events:
        for candidate in event.candidates:
            for part in candidate.content.parts if candidate.content else ():
                texts[candidate.index] += part.text
    assert list(texts.values()) == [one.content.parts[0].text for one in whole.candidates]
    assert [one.finish_reason for one in events[-1].candidates] == [types.FinishReason.MAX_TOKENS] * 2
    assert events[-1].usage_metadata == whole.usage_metadata


@pytest.mark.parametrize("streamed", [False, True])
def test_calls_and_their_results(serve: Any, streamed: bool) -> None:
    client, server = serve(f"Look:{CALL}", HERMES)
    config = types.GenerateContentConfig(tools=[weather()])
    if streamed:
        events = client.models.generate_content_stream(model=MODEL, contents="Köln?", config=config)
        parts = [part for one in events for c in one.candidates if c.content for part in c.content.parts]
    else:
        reply = client.models.generate_content(model=MODEL, contents="Köln?", config=config)
        parts = reply.candidates[0].content.parts
        assert reply.candidates[0].finish_reason == types.FinishReason.STOP
    [call] = [part.function_call for part in parts if part.function_call]
    assert (call.name, call.args) == ("weather", {"town": "Köln"})
    assert "".join(part.text or "" for part in parts) == "Look:"
    turns = [
        types.Content(role="user", parts=[types.Part(text="Köln?")]),
        types.Content(role="model", parts=[types.Part(function_call=call)]),
        types.Content(
            role="user",
            parts=[types.Part.from_function_response(name="weather", response={"result": "rain"})],
        ),
    ]
    client.models.generate_content(model=MODEL, contents=turns, config=config)
    *_, asked, told = server.model.template.messages
    assert asked.tool_calls[0].name == "weather" and asked.content is None
    assert (told.role, told.content, told.name) == ("tool", "rain", "weather")
    assert told.tool_call_id == asked.tool_calls[0].id


def test_thoughts_are_shown_where_asked_for(serve: Any) -> None:
    client, _ = serve("<think>hm, so</think>Yes.", THINK)
    hidden = client.models.generate_content(model=MODEL, contents="?")
    assert [part.text for part in hidden.candidates[0].content.parts] == ["Yes."]
    assert hidden.usage_metadata.thoughts_token_count > 0
    config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
    shown = client.models.generate_content(model=MODEL, contents="?", config=config)
    assert [(part.text, bool(part.thought)) for part in shown.candidates[0].content.parts] == [
        ("hm, so", True),
        ("Yes.", False),
    ]


def test_counts_and_models(serve: Any) -> None:
    client, _ = serve("x")
    counted = client.models.count_tokens(model=MODEL, contents="hello")
    reply = client.models.generate_content(model=MODEL, contents="hello")
    assert counted.total_tokens == reply.usage_metadata.prompt_token_count
    assert [one.name for one in client.models.list()] == [f"models/{MODEL}"]
    assert client.models.get(model=MODEL).input_token_limit > 0


def test_errors_are_googles(serve: Any) -> None:
    client, _ = serve("x", api_key=("secret",))
    with pytest.raises(genai.errors.ClientError) as refused:
        client.models.generate_content(model=MODEL, contents="hello")
    assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"tools": [{"google_search": {}}]}, "googleSearch"),
        ({"cached_content": "cachedContents/1"}, "cachedContent"),
        ({"response_modalities": ["IMAGE"]}, "responseModalities"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_is_not_here_is_refused_by_name(serve: Any, config: dict[str, Any], named: str) -> None:
    client, _ = serve("x", api_key=("none",))
    with pytest.raises(genai.errors.ClientError, match=named) as refused:
        client.models.generate_content(model=MODEL, contents="hello", config=config)
    assert refused.value.status == "INVALID_ARGUMENT"


def test_embeddings(encoders: Running) -> None:
    client = client_of(encoders)
    found = client.models.embed_content(model="embedder", contents=DOCUMENTS)
    assert same([one.values for one in found.embeddings], expected_vectors(encoders, *DOCUMENTS))
    config = types.EmbedContentConfig(task_type="RETRIEVAL_QUERY", output_dimensionality=8)
    [short] = client.models.embed_content(model="embedder", contents=DOCUMENTS[0], config=config).embeddings
    assert len(short.values) == 8
