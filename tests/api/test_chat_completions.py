"""POST /v1/chat/completions, driven by the official client."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from fake import CONTEXT_LENGTH, FakeModel, overloaded
from in_process import Running

from headrace.errors import DeadlineExceeded, EngineStopped

HELLO = [{"role": "user", "content": "hello"}]
MODEL = "fake/model"


def text_of(stream) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def events_of(body: str) -> list[str]:
    parts = body.split("\n\n")
    assert parts[-1] == "", "the stream ends with an empty line"
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [part.removeprefix("data: ") for part in parts[:-1]]


def test_a_whole_reply(server: Running) -> None:
    reply = server.openai().chat.completions.create(model=MODEL, messages=HELLO, max_tokens=7)
    assert reply.choices[0].message.content == "a bé c€"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.object == "chat.completion"
    assert reply.usage.prompt_tokens == len(b"user: hello\nassistant:")
    assert reply.usage.completion_tokens == 7
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 7
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    assert reply.usage.prompt_tokens_details.model_extra["cache_miss_reason"] == "new prompt"
    assert "warnings" not in reply.model_extra


def test_a_stream_has_the_role_first_and_the_usage_last(server: Running) -> None:
    stream = server.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == "a bé"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_bytes_of_a_stream(server: Running) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "stream": True}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(reply.text)
    assert done == "[DONE]"
    assert "usage" not in json.loads(chunks[0])
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"


def test_several_choices(server: Running) -> None:
    client = server.openai()
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, n=3, stream=True)
    ends = [c.choices[0].index for c in stream if c.choices[0].finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_logprobs(server: Running) -> None:
    reply = server.openai().chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["a", " ", "b", "bytes:\\xc3", "bytes:\\xa9"]
    assert content[3].bytes == [0xC3]
    assert content[0].logprob == -0.5
    assert [top.token for top in content[0].top_logprobs] == ["A", "B"]


def test_every_sampling_parameter_reaches_the_engine(server: Running) -> None:
    sampling = {
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 11,
        "n": 2,
        "min_tokens": 1,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
    }
    body = sampling | {
        "messages": HELLO,
        "max_completion_tokens": 5,
        "stop": "x",
        "stop_token_ids": [3],
        "logit_bias": {"7": -100},
        "priority": -2,
        "deadline_s": 30,
    }
    assert server.http().post("/v1/chat/completions", json=body).status_code == 200
    [request] = server.model.engine.submitted
    for name, value in sampling.items():
        assert getattr(request.params, name) == value, name
    assert request.params.max_tokens == 5
    assert request.params.stop == ("x",)
    assert request.params.stop_token_ids == (3,)
    assert request.params.logit_bias == {7: -100}
    assert (request.priority, request.deadline_s) == (-2, 30)


def test_the_template_gets_its_variables_and_can_continue(server: Running) -> None:
    post = server.http().post
    messages = [*HELLO, {"role": "assistant", "content": "so"}]
    body = {"messages": messages, "max_tokens": 1, "add_generation_prompt": False}
    assert post("/v1/chat/completions", json=body).status_code == 200
    assert bytes(server.model.engine.submitted[0].prompt) == b"user: hello\nassistant: so"
    refused = post("/v1/chat/completions", json={"messages": HELLO, "chat_template_kwargs": {"refuse": True}})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "template_error"


def test_a_model_without_template_says_so(serve) -> None:
    reply = serve(FakeModel(template=None)).http().post("/v1/chat/completions", json={"messages": HELLO})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "template_missing"


def test_a_prompt_that_is_too_long_is_refused_before_the_stream(server: Running) -> None:
    messages = [{"role": "user", "content": "x" * CONTEXT_LENGTH}]
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model=MODEL, messages=messages, stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT_LENGTH)[0] in caught.value.message
    assert server.model.engine.submitted == []


def test_an_overloaded_engine_says_when_to_come_back(server: Running) -> None:
    server.model.engine.refusal = overloaded()
    reply = server.http().post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "2"
    assert reply.headers["retry-after-ms"] == "2000"


def test_a_failure_after_the_start_is_one_chunk_and_the_end(server: Running) -> None:
    server.model.engine.failure = EngineStopped("the engine failed")
    reply = server.http().post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    assert reply.status_code == 200
    *chunks, last = events_of(reply.text)
    error = json.loads(last)["error"]
    assert error == {
        "message": "the engine failed",
        "type": "server_error",
        "param": None,
        "code": "engine_stopped",
    }
    assert all("error" not in json.loads(chunk) for chunk in chunks)
    with pytest.raises(openai.APIError):
        list(server.openai().chat.completions.create(model=MODEL, messages=HELLO, stream=True))


def test_a_failure_without_stream_has_its_status(server: Running) -> None:
    server.model.engine.failure = DeadlineExceeded("the deadline of 1 s has passed")
    reply = server.http().post("/v1/chat/completions", json={"messages": HELLO})
    assert reply.status_code == 408
    assert reply.json()["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("streamed", [True, False])
def test_leaving_cancels(server: Running, streamed: bool) -> None:
    engine = server.model.engine
    engine.go.clear()
    http = server.http()
    body = {"messages": HELLO, "stream": streamed}
    if streamed:
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200
    else:
        with pytest.raises(Exception, match="timed out"):
            http.post("/v1/chat/completions", json=body, timeout=0.5)
    http.close()
    assert engine.cancelled_event.wait(10)
    assert engine.cancelled == [engine.submitted[0].request_id]


def test_64_streams_end_with_one_terminal_event_each(server: Running) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, int]:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=5 + number % 7, stream=True
        )
        chunks = [chunk async for chunk in stream]
        return text_of(chunks), sum(bool(chunk.choices[0].finish_reason) for chunk in chunks)

    async def all_of_them() -> list[tuple[str, int]]:
        async with server.async_openai() as client:
            return await asyncio.gather(*(one(client, number) for number in range(64)))

    for number, (text, ends) in enumerate(asyncio.run(all_of_them())):
        assert text == "a bé c€ d. "[: 5 + number % 7]
        assert ends == 1


def test_keys_separate_prefix_caches(serve) -> None:
    server = serve(api_key="one,two")
    salts = []
    for key, more in (("one", {}), ("two", {}), ("one", {"prompt_cache_key": "a"}), ("one", {})):
        headers = {"authorization": f"Bearer {key}"}
        body = {"messages": HELLO, "max_tokens": 1} | more
        assert server.http(headers=headers).post("/v1/chat/completions", json=body).status_code == 200
        salts.append(server.model.engine.submitted[-1].cache_salt)
    assert len(set(salts)) == 3
    assert salts[0] == salts[3]
    assert "one" not in "".join(salts)
