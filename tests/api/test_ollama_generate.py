"""/api/generate, driven by Ollama's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import ollama
import pytest
from fake import CONTEXT_LENGTH, FakeEngine, FakeModel, FakeTemplate, overloaded
from in_process import Running

from headrace.errors import EngineStopped

MODEL = "fake/model"
Serve = Callable[..., Running]


def generate(server: Running, prompt: str = "hello", **more: Any) -> ollama.GenerateResponse:
    return server.ollama().generate(model=MODEL, prompt=prompt, **more)


def refused(server: Running, status: int = 400, **more: Any) -> str:
    with pytest.raises(ollama.ResponseError) as caught:
        generate(server, **more)
    assert caught.value.status_code == status
    return caught.value.error


def body_of(server: Running, **more: Any) -> dict[str, Any]:
    reply = server.http().post(
        "/api/generate", json={"model": MODEL, "prompt": "hello", "stream": False, **more}
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_whole_reply_with_counts_and_durations(server: Running) -> None:
    reply = generate(server, options={"num_predict": 4})
    assert (reply.response, reply.done, reply.done_reason) == ("a bé", True, "length")
    prompt = b"user: hello\nassistant:"
    assert bytes(server.model.engine.submitted[0].prompt) == prompt
    assert (reply.prompt_eval_count, reply.eval_count) == (len(prompt), 4)
    assert (reply.prompt_eval_duration, reply.eval_duration) == (1_000_000, 8_000_000)  # the fake's timing
    assert reply.total_duration >= reply.load_duration + 10_000_000
    assert bytes(reply.context) == prompt + "a bé".encode()
    assert body_of(server)["seed"] == 7


def test_a_stream_is_lines_and_the_last_one_is_done(server: Running) -> None:
    parts = list(generate(server, options={"num_predict": 4}, stream=True))
    assert "".join(part.response for part in parts) == "a bé"
    assert [part.done for part in parts] == [False] * 4 + [True]
    assert parts[-1].done_reason == "length" and parts[-1].eval_count == 4
    assert parts[-1].context and parts[0].context is None
    reply = server.http().post("/api/generate", json={"model": MODEL, "prompt": "hello"})
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["model"] for line in reply.text.splitlines()] == [MODEL] * 12


def test_the_async_client(server: Running) -> None:
    async def ask() -> tuple[str, list[str]]:
        client = server.async_ollama()
        whole = await client.generate(model=MODEL, prompt="hello", options={"num_predict": 3})
        stream = await client.generate(model=MODEL, prompt="hello", options={"num_predict": 3}, stream=True)
        parts = [part.response async for part in stream]
        await client.close()
        return whole.response, parts

    assert asyncio.run(ask()) == ("a b", ["a", " ", "b", ""])


def test_every_option_reaches_the_engine(server: Running) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 11,
        "num_predict": 5,
        "stop": ["x", "y"],
    }
    generate(server, options=options)
    params = server.model.engine.submitted[0].params
    assert params.repetition_penalty == 1.1 and params.max_tokens == 5 and params.stop == ("x", "y")
    for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "seed"):
        assert getattr(params, name) == options[name], name


@pytest.mark.parametrize(
    ("options", "max_tokens"),
    [
        ({}, None),
        ({"num_predict": -1}, None),
        ({"num_predict": -2}, None),
        ({"num_predict": 10**6}, CONTEXT_LENGTH - 22),
        ({"num_ctx": 32}, 10),
        ({"num_ctx": 32, "num_predict": 4}, 4),
        ({"num_ctx": 32, "num_predict": 40}, 10),
        ({"num_ctx": CONTEXT_LENGTH}, CONTEXT_LENGTH - 22),
    ],
)
def test_limits_of_the_answer(server: Running, options: dict[str, int], max_tokens: int | None) -> None:
    stream = generate(server, options=options, stream=True)
    next(stream)
    stream.close()
    assert server.model.engine.submitted[0].params.max_tokens == max_tokens


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"num_ctx": CONTEXT_LENGTH + 1}, "larger --max-model-len"),
        ({"num_ctx": 22}, "num_ctx is 22"),
        ({"num_ctx": 0}, "num_ctx is 0"),
        ({"num_predict": 0}, "num_predict is 0"),
        ({"num_predict": -3}, "num_predict is -3"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0"),
        ({"temperature": "hot"}, "temperature: "),
        ({"top_k": True}, "top_k: "),
        ({"tfs_z": 0.5}, "tfs_z is not supported yet"),
    ],
)
def test_options_that_cannot_be_honored_are_named(
    server: Running, options: dict[str, Any], said: str
) -> None:
    assert said in refused(server, options=options)
    assert server.model.engine.submitted == []


def test_options_of_the_loading_have_no_effect_and_say_so(server: Running) -> None:
    options = {"num_gpu": 1, "use_mmap": True, "num_thread": 2, "tfs_z": 1.0, "seed": -1, "num_predict": 1}
    found = body_of(server, options=options, truncate=True, keep_alive="5m")["warnings"]
    assert {warning["param"] for warning in found} == {
        *("num_gpu", "use_mmap", "num_thread", "truncate", "keep_alive")
    }
    assert server.model.engine.submitted[0].params.seed is None
    quiet = body_of(server, options={"num_predict": 1}, truncate=False, keep_alive=-1)
    assert "warnings" not in quiet


def test_a_prompt_is_never_cut(server: Running) -> None:
    said = refused(server, prompt="x" * CONTEXT_LENGTH, options={"num_predict": 8}, stream=False)
    assert "4,113 tokens" in said
    with pytest.raises(ollama.ResponseError) as caught:
        list(generate(server, prompt="x" * CONTEXT_LENGTH, stream=True))
    assert caught.value.status_code == 400


def test_system_and_raw(server: Running) -> None:
    generate(server, system="Be brief.", options={"num_predict": 1})
    assert bytes(server.model.engine.submitted[0].prompt) == b"system: Be brief.\nuser: hello\nassistant:"
    reply = generate(server, raw=True, options={"num_predict": 1})
    assert server.model.engine.submitted[1].prompt == (256, *b"hello")
    assert server.model.engine.submitted[1].is_continuation
    assert reply.context is None


def test_a_suffix_fills_in(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<|endoftext|>": 4}
    monkeypatch.setattr(server.model.tokenizer, "id_of", marks.get, raising=False)
    monkeypatch.setattr(server.model.tokenizer.pieces, "kind", None, raising=False)
    assert generate(server, prompt="ab", suffix="yz", options={"num_predict": 3}).response == "a b"
    [request] = server.model.engine.submitted
    assert request.prompt == (256, 1, *b"ab", 2, *b"yz", 3)
    assert request.params.stop_token_ids == (4,)


def test_a_context_goes_before_the_next_turn(server: Running) -> None:
    first = generate(server, options={"num_predict": 3})
    generate(server, prompt="more", context=first.context, options={"num_predict": 1})
    prompt = server.model.engine.submitted[1].prompt
    assert bytes(prompt) == b"user: hello\nassistant:a buser: more\nassistant:"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"raw": True, "system": "s"}, "raw makes no turns"),
        ({"raw": True, "context": [1]}, "context has no place"),
        ({"template": "{{ .Prompt }}"}, "template cannot be sent"),
        ({"suffix": "}"}, "no tokens for filling in"),
        ({"suffix": "}", "system": "s"}, "suffix makes no turns"),
        ({"images": ["aGVsbG8="]}, "images cannot be read"),
        ({"width": 512}, "width is not supported"),
        ({"think": True}, "does not support thinking"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"keep_alive": "soon"}, "keep_alive is 'soon'"),
    ],
)
def test_what_is_refused_is_named(server: Running, more: dict[str, Any], said: str) -> None:
    assert said in refused(server, **more)


def test_unknown_fields_are_named(server: Running) -> None:
    wrong = server.http().post("/api/generate", json={"model": MODEL, "prompt": "x", "format": ["json"]})
    assert (wrong.status_code, "format" in wrong.json()["error"]) == (400, True)
    reply = server.http().post("/api/generate", json={"model": MODEL, "promt": "x"})
    assert reply.status_code == 400
    assert reply.json() == {"error": "unknown parameter 'promt': did you mean 'prompt'?"}


def test_formats_become_constraints(server: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for wanted, kind in (("json", "json_object"), (schema, "json_schema")):
        generate(server, format=wanted, options={"num_predict": 1})
        constraint = server.model.engine.submitted[-1].constraint
        assert (constraint.kind, constraint.param) == (kind, "format")
    generate(server, format="", options={"num_predict": 1})
    assert server.model.engine.submitted[-1].constraint is None


def test_logprobs(server: Running) -> None:
    reply = generate(server, logprobs=True, top_logprobs=2, options={"num_predict": 2})
    assert [entry.token for entry in reply.logprobs] == ["a", " "]
    assert reply.logprobs[0].logprob == -0.5
    assert [top.token for top in reply.logprobs[0].top_logprobs] == ["A", "B"]
    parts = list(generate(server, logprobs=True, options={"num_predict": 2}, stream=True))
    assert [part.logprobs[0].token for part in parts[:-1]] == ["a", " "]


def test_thinking_stands_apart(serve: Serve) -> None:
    server = serve(
        FakeModel(engine=FakeEngine("<think>hm</think>ok"), template=FakeTemplate("<think></think>"))
    )
    reply = generate(server)
    assert (reply.thinking, reply.response) == ("hm", "ok")
    parts = list(generate(server, stream=True))
    assert "".join(part.thinking or "" for part in parts) == "hm"
    assert "".join(part.response for part in parts) == "ok"


def test_without_a_template_the_prompt_is_used_as_it_is(serve: Serve) -> None:
    server = serve(FakeModel(template=None))
    found = body_of(server, options={"num_predict": 1})
    assert found["warnings"][0]["param"] == "raw"
    assert server.model.engine.submitted[0].prompt == (256, *b"hello")
    assert "no chat template" in refused(server, system="s")


def test_an_empty_prompt_loads_the_model(server: Running) -> None:
    reply = generate(server, prompt="")
    assert (reply.done, reply.done_reason, reply.response) == (True, "load", "")
    [part] = list(generate(server, prompt="", stream=True))
    assert part.done_reason == "load"
    assert server.model.engine.submitted == []


@pytest.mark.parametrize("stream", [True, False])
def test_an_unknown_model_is_404(server: Running, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        list(server.ollama().generate(model="other", prompt="x", stream=stream))
    assert caught.value.status_code == 404
    assert "fake/model" in caught.value.error


def test_a_tag_of_ollamas_is_no_part_of_a_name(server: Running) -> None:
    reply = server.ollama().generate(model=MODEL + ":latest", prompt="x", options={"num_predict": 1})
    assert reply.model == MODEL + ":latest"


def test_a_failure_mid_stream_is_a_line(server: Running) -> None:
    server.model.engine.failure = EngineStopped("the engine failed")
    parts = []
    with pytest.raises(ollama.ResponseError, match="the engine failed"):
        for part in generate(server, stream=True):
            parts.append(part)
    assert parts and not any(part.done for part in parts)
    assert refused(server, status=503, stream=False) == "the engine failed"


def test_overload_says_when_to_come_back(server: Running) -> None:
    server.model.engine.refusal = overloaded()
    reply = server.http().post("/api/generate", json={"model": MODEL, "prompt": "x"})
    assert reply.status_code == 503 and reply.headers["retry-after"] == "2"
    assert list(reply.json()) == ["error"]


def test_errors_of_the_door_have_ollamas_shape(serve: Serve) -> None:
    server = serve(api_key="secret")
    with pytest.raises(ollama.ResponseError) as caught:
        server.ollama().list()
    assert caught.value.status_code == 401 and "API key" in caught.value.error
    assert server.ollama(headers={"Authorization": "Bearer secret"}).list().models
    http = server.http(headers={"authorization": "Bearer secret"})
    for reply, status in (
        (http.get("/api/generate"), 405),
        (http.post("/api/nothing", json={}), 404),
        (http.post("/api/generate", content=b"{"), 400),
        (http.post("/api/blobs/sha256:0", content=b"x"), 404),
    ):
        assert reply.status_code == status
        assert isinstance(reply.json()["error"], str)


def test_leaving_cancels(serve: Serve) -> None:
    server = serve(FakeModel(engine=FakeEngine(pause_s=0.002)))
    engine = server.model.engine
    stream = generate(server, prompt="x", stream=True, options={"num_predict": 2000})
    next(stream)
    stream.close()
    assert engine.cancelled_event.wait(10)
    assert engine.cancelled == [engine.submitted[0].request_id]
