"""The HTTP surface over the real engine and the model that ships."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from in_process import Running, running_server

from free_tokens import FreeTokens
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions

PROMPT = "It was a cold evening, and the old house at the end of the lane"


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=64, max_batch_tokens=256))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[Running]:
    with running_server(model) as running:
        yield running


def test_streamed_and_whole_text_are_the_same(server: Running) -> None:
    client = server.openai()
    request = {"model": server.model.name, "prompt": PROMPT, "max_tokens": 40, "seed": 3}
    whole = client.completions.create(**request)
    streamed = client.completions.create(**request, stream=True)
    assert whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
    assert whole.usage.completion_tokens == 40


def test_a_repeated_prompt_is_cached(server: Running) -> None:
    client = server.openai()
    prompt = list(range(5, 60))
    for expected in (0, 48):
        reply = client.completions.create(model=server.model.name, prompt=prompt, max_tokens=1)
        assert reply.usage.prompt_tokens_details.cached_tokens == expected


def test_chat_streams(server: Running) -> None:
    stream = server.openai().chat.completions.create(
        model=server.model.name,
        messages=[{"role": "user", "content": "Tell me of the sea."}],
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage.prompt_tokens > 0
    assert sum(bool(c.choices and c.choices[0].finish_reason) for c in chunks) == 1


def test_closing_a_stream_frees_its_pages_within_a_step(server: Running, monkeypatch) -> None:
    engine = server.model.engine
    steps_at_cancel: list[int] = []
    cancel = engine.cancel

    def cancel_and_note(request_id: str) -> None:
        with engine._queue._wake:  # the loop does not take the word before the look at the count
            cancel(request_id)
            steps_at_cancel.append(engine.status().steps)

    monkeypatch.setattr(engine, "cancel", cancel_and_note)
    before = engine.status()
    # No end before the context is full: without the cancel this would run for hundreds of steps.
    stream = server.openai().completions.create(
        model=server.model.name, prompt=PROMPT, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert engine.status().available_pages < before.available_pages
    stream.close()
    while engine.status().running:
        pass
    after = engine.status()
    assert after.available_pages == before.available_pages
    assert after.steps - steps_at_cancel[0] <= 1  # the step that was under way
    assert after.steps - before.steps < 400, "the request ran to its end: closing did not cancel it"


def test_64_streams_end_with_one_terminal_event_each(server: Running) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> int:
        stream = await client.completions.create(
            model=server.model.name, prompt=f"{number} {PROMPT}", max_tokens=16, seed=number, stream=True
        )
        return sum([bool(chunk.choices[0].finish_reason) async for chunk in stream])

    async def all_of_them() -> list[int]:
        async with server.async_openai() as client:
            return await asyncio.gather(*(one(client, number) for number in range(64)))

    assert asyncio.run(all_of_them()) == [1] * 64
    status = server.model.engine.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.available_pages == status.page_count


def test_refusals_of_the_real_door(server: Running) -> None:
    post = server.http().post
    context = server.model.context_length
    too_long = post("/v1/completions", json={"prompt": [5] * (context + 1), "stream": True})
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    for body, param in (
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": "a", "logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"prompt": "a", "stop_token_ids": [10**6]}, "stop_token_ids"),
    ):
        reply = post("/v1/completions", json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param


def test_health_is_that_of_the_engine(server: Running) -> None:
    body = server.http().get("/health").json()
    assert body["status"] == "ok"
    assert body["page_count"] == server.model.engine.status().page_count


def test_the_reported_seed_is_that_of_every_prompt(server: Running) -> None:
    def seed(**body: object) -> int | None:
        reply = server.http().post("/v1/completions", json={"max_tokens": 1, **body})
        return reply.json().get("seed")

    assert seed(prompt="a") is not None
    assert seed(prompt=["a", "b"], seed=7) == 7
    assert seed(prompt=["a", "b"]) is None  # each has drawn its own


def test_every_sampling_parameter_takes_effect(server: Running) -> None:
    def text(**body: object) -> str:
        asked = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "temperature": 1.2, **body}
        reply = server.http().post("/v1/completions", json=asked)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["text"]

    plain = text()
    for body in (
        {"typical_p": 0.2},
        {"top_n_sigma": 0.5},
        {"xtc_probability": 1, "xtc_threshold": 0.05},
        {"mirostat": 1, "mirostat_tau": 1},
        {"mirostat": 2, "mirostat_tau": 1, "mirostat_eta": 0.2},
        {"dynatemp_range": 1.0, "dynatemp_exponent": 2},
        {"bad_words": plain.split()[:3]},
        {"banned_strings": [plain[5:8]]},
    ):
        assert text(**body) != plain, body
    assert text(mirostat=0, typical_p=1, dry_multiplier=0, repeat_last_n=-1, bad_words=[]) == plain
    looping = {"logit_bias": {"20": 50}}
    assert text(**looping, dry_multiplier=100, dry_allowed_length=1) != text(**looping)
    penalized = {"repetition_penalty": 1.8, "frequency_penalty": 1.0}
    assert text(**penalized, repeat_last_n=2) != text(**penalized)
    assert text(**penalized, repeat_last_n=0) == text(repetition_penalty=1)


def test_beams_come_best_first_and_best_of_is_their_number(server: Running) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 12, "use_beam_search": True, "logprobs": 0}
    post = server.http().post
    four = post("/v1/completions", json=asked | {"n": 4}).json()["choices"]
    sums = [sum(choice["logprobs"]["token_logprobs"]) / 12 for choice in four]
    assert sums == sorted(sums, reverse=True) and len({choice["text"] for choice in four}) == 4
    best = post("/v1/completions", json=asked | {"n": 2, "best_of": 4}).json()["choices"]
    assert [choice["text"] for choice in best] == [choice["text"] for choice in four[:2]]
    chat = {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 5,
        "use_beam_search": True,
        "n": 3,
    }
    assert len(post("/v1/chat/completions", json=chat).json()["choices"]) == 3


def test_echo_with_logprobs_scores_every_token_of_the_prompt(server: Running) -> None:
    asked = {"model": server.model.name, "prompt": PROMPT, "max_tokens": 3, "logprobs": 2, "echo": True}
    choice = server.openai().completions.create(**asked, temperature=0).choices[0]
    assert choice.text.startswith(PROMPT)
    count = len(server.model.tokenizer.encode_prompt(PROMPT))
    assert len(choice.logprobs.token_logprobs) == count + 3
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    again = server.openai().completions.create(**asked, temperature=0).choices[0]  # the cache changes nothing
    assert again.logprobs == choice.logprobs
    assert choice.text[choice.logprobs.text_offset[count] :] == choice.text[len(PROMPT) :]


def test_a_predicted_answer_is_the_same_and_its_tokens_are_counted(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(server.model.engine._speculation, "costs", FreeTokens())
    client = server.openai()
    request = {
        "model": server.model.name,
        "messages": [{"role": "user", "content": "Tell me of the hill."}],
        "max_tokens": 60,
        "temperature": 0,
    }
    plain = client.chat.completions.create(**request)
    text = plain.choices[0].message.content
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
    predicted = client.chat.completions.create(**request, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    counted = predicted.usage.completion_tokens_details
    assert counted.accepted_prediction_tokens > 30
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(**request, prediction={"type": "text", "content": text})
