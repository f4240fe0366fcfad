"""Guards and moderation over HTTP, with the official clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anthropic
import openai
import pytest
from in_process import Running
from msgspec.structs import replace

from head_models import head_model
from headrace.api.service import Service
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.tasks.guards.settings import chosen
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

BLOCKING = {"private": {"kind": "pii", "entities": ["EMAIL_ADDRESS"], "on": ["input"]}}


def test_blocked_input_is_an_error_of_each_client(serve: Callable[..., Running]) -> None:
    server = serve(guards=BLOCKING)
    messages = [{"role": "user", "content": "mail a@x.org"}]
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model="fake/model", messages=messages)  # type: ignore
    assert caught.value.code == "content_filter"
    with pytest.raises(anthropic.BadRequestError, match="'private' blocks"):
        server.anthropic().messages.create(model="fake/model", max_tokens=5, messages=messages)  # type: ignore


def test_flags_are_in_the_reply_whole_and_streamed(serve: Callable[..., Running]) -> None:
    server = serve(guards={"private": {"kind": "pii", "action": "flag", "on": ["input"]}})
    server.model.engine.go.set()
    body = {"model": "fake/model", "messages": [{"role": "user", "content": "mail a@x.org"}], "max_tokens": 3}
    reply = server.http().post("/v1/chat/completions", json=body).json()
    verdict = {"guard": "private", "stage": "input", "action": "flag", "label": "EMAIL_ADDRESS", "score": 1.0}
    assert reply["guards"] == [verdict]
    assert reply["warnings"][0]["param"] == "guard"
    streamed = server.http().post("/v1/chat/completions", json=body | {"stream": True}).text
    assert streamed.count('"guards":[') == streamed.count('"warnings":[') == 1


def test_blocked_output_is_a_content_filter_or_a_refusal(serve: Callable[..., Running]) -> None:
    server = serve(guards={"all": {"kind": "regex", "patterns": ["."], "on": ["output"]}})
    server.model.engine.go.set()
    messages = [{"role": "user", "content": "x"}]
    asked = {"model": "fake/model", "max_tokens": 3, "messages": messages}
    [choice] = server.openai().chat.completions.create(**asked).choices  # type: ignore
    assert choice.finish_reason == "content_filter" and not choice.message.content
    chunks = list(server.openai().chat.completions.create(stream=True, **asked))  # type: ignore
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "content_filter"
    assert server.anthropic().messages.create(**asked).stop_reason == "refusal"  # type: ignore
    made = server.openai().responses.create(model="fake/model", input="x", max_output_tokens=3)
    assert made.status == "incomplete" and made.incomplete_details.reason == "content_filter"  # type: ignore


@pytest.mark.parametrize("action", ["flag", "redact"])
def test_a_stream_has_the_text_of_a_whole_reply(serve: Callable[..., Running], action: str) -> None:
    guard = {"kind": "regex", "patterns": ["no such text"], "on": ["output"], "action": action}
    server = serve(guards={"words": guard})
    server.model.engine.go.set()
    asked = {"model": "fake/model", "prompt": "x", "max_tokens": 3}
    [whole] = server.openai().completions.create(**asked).choices  # type: ignore
    chunks = list(server.openai().completions.create(stream=True, **asked))  # type: ignore
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.text != ""
    asked["messages"] = [{"role": "user", "content": asked.pop("prompt")}]
    [whole] = server.openai().chat.completions.create(**asked).choices  # type: ignore
    chunks = list(server.openai().chat.completions.create(stream=True, **asked))  # type: ignore
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.message.content != ""


def test_unknown_guards_are_refused(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="unknown guard 'x'"):
        server.openai().chat.completions.create(
            model="fake/model", messages=[{"role": "user", "content": "x"}], extra_body={"guard": "x"}
        )


def test_names_of_guards_are_bounded(server: Running) -> None:
    """Each was looked up in the package's folder, on the server's only loop."""
    message = {"role": "user", "content": "x"}
    names = {"guard": ["injection"] * 101}
    chats = [("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 1}), ("/api/chat", {})]
    for path, more in chats:
        body = {"model": "fake/model", "messages": [message], **names, **more}
        reply = server.http().post(path, json=body)
        assert reply.status_code == 400 and "guard has 101 names" in reply.text, path
    assert list(chosen({}, ("injection",) * 3)) == ["injection"]


def test_moderations_with_the_official_client(serve: Callable[..., Running], tmp_path: Path) -> None:
    folder = head_model(tmp_path, "heads/bert_classify")
    model = load_model(str(folder), EngineOptions(threads=1, backend="numpy"))
    try:
        assert model.head is not None
        first, second = model.head.labels[:2]
        settings = {"model": model.name, "map": {first: "hate", second: "violence"}, "threshold": 0.0}
        client = serve(model, moderation=settings).openai()
        found = client.moderations.create(model="omni-moderation-latest", input=["hello", "you"])
        assert len(found.results) == 2
        scores = found.results[0].category_scores
        assert scores.hate > 0 and scores.violence > 0 and scores.sexual_minors == 0
        assert found.results[0].categories.hate and not found.results[0].categories.illicit
        assert found.results[0].flagged
        assert found.results[0].category_applied_input_types.hate == ["text"]
        parts = client.moderations.create(input=[{"type": "text", "text": "hello"}])
        assert parts.results[0].category_scores.hate == pytest.approx(scores.hate)
        image = {"type": "image_url", "image_url": {"url": "data:"}}
        with pytest.raises(openai.BadRequestError, match="no part of type"):
            client.moderations.create(input=[image])  # type: ignore
    finally:
        model.close()


def test_moderation_without_a_classifier_is_refused(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="no classifier is configured"):
        server.openai().moderations.create(input="x")


def test_a_guard_whose_model_is_not_served_stops_the_start(server: Running, tmp_path: Path) -> None:
    guard = {"kind": "classifier", "model": "nowhere", "labels": ["BAD"]}
    settings = Settings(guards={"g": guard}, store=tmp_path / "store.sqlite3")
    spec = ModelSpec(name="fake/model", model="fake/model", options=EngineOptions(), aliases=("other",))
    service = Service(ModelManager.fixed(server.model, spec), settings)
    try:
        wanted = (
            r"guards.g: the model 'nowhere' is not served, this server serves 'fake/model'.*models.nowhere"
        )
        with pytest.raises(UsageError, match=wanted):
            service.check_guards(settings, [spec])
        for known in ("fake/model", "other"):
            service.check_guards(replace(settings, guards={"g": guard | {"model": known}}), [spec])
    finally:
        service.close()
