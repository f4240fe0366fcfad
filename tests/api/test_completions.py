"""POST /v1/completions, driven by the official client."""

from __future__ import annotations

import openai
import pytest
from in_process import Running

from headrace.api.openai.completions import TextFormatter

MODEL = "fake/model"


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[256, 97, 98]]),
        (["a", "b"], [[256, 97], [256, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        ("", [[256]]),
    ],
)
def test_the_forms_of_a_prompt(server: Running, prompt, ids) -> None:
    reply = server.openai().completions.create(model=MODEL, prompt=prompt, max_tokens=3)
    assert [list(request.prompt) for request in server.model.engine.submitted] == ids
    assert [choice.text for choice in reply.choices] == ["a b"] * len(ids)
    assert reply.usage.prompt_tokens == sum(map(len, ids))
    assert reply.usage.completion_tokens == 3 * len(ids)


def test_max_tokens_is_16_as_with_openai(server: Running) -> None:
    server.openai().completions.create(model=MODEL, prompt="a")
    assert server.model.engine.submitted[0].params.max_tokens == 16


def test_a_stream_of_several_prompts_and_choices(server: Running) -> None:
    stream = server.openai().completions.create(
        model=MODEL, prompt=["x", "y"], n=2, max_tokens=3, echo=True, stream=True
    )
    texts = dict.fromkeys(range(4), "")
    ends = []
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        if chunk.choices[0].finish_reason:
            ends.append(chunk.choices[0].index)
    assert texts == {0: "xa b", 1: "xa b", 2: "ya b", 3: "ya b"}
    assert sorted(ends) == [0, 1, 2, 3]


def test_echo_repeats_ids_as_text(server: Running) -> None:
    reply = server.openai().completions.create(model=MODEL, prompt=[104, 105], max_tokens=1, echo=True)
    assert reply.choices[0].text == "hia"


def test_logprobs(server: Running) -> None:
    reply = server.openai().completions.create(model=MODEL, prompt="a", max_tokens=3, logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == ["a", " ", "b"]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs[0] == {"A": -0.5, "B": -1.5}


def test_echo_with_logprobs_scores_the_prompt_too(server: Running) -> None:
    client = server.openai()
    request = {"model": MODEL, "prompt": "xyz", "max_tokens": 2, "logprobs": 1, "echo": True}
    choice = client.completions.create(**request).choices[0]
    assert choice.text == "xyza "
    assert choice.logprobs.tokens == ["<s>", "x", "y", "z", "a", " "]
    assert choice.logprobs.token_logprobs == [None, -2.0, -2.0, -2.0, -0.5, -0.5]
    assert choice.logprobs.top_logprobs == [None, *[{"A": -0.25}] * 3, *[{"A": -0.5}] * 2]
    assert choice.logprobs.text_offset == [0, 3, 4, 5, 3, 4]  # the fake's BOS is no special token
    streamed = list(client.completions.create(**request, stream=True))
    parts = [part.choices[0].logprobs for part in streamed if part.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens] == choice.logprobs.tokens
    assert [value for part in parts for value in part.token_logprobs] == choice.logprobs.token_logprobs


def test_prompt_logprobs_have_vllms_shape(server: Running) -> None:
    post = server.http().post
    body = {"prompt": [[256, 97, 98], [99]], "max_tokens": 1, "prompt_logprobs": 1}
    choices = post("/v1/completions", json=body).json()["choices"]
    liked = {"65": {"logprob": -0.25, "rank": 1, "decoded_token": "A"}}
    scored = [
        {str(token): {"logprob": -2.0, "rank": 7, "decoded_token": chr(token)}} | liked for token in (97, 98)
    ]
    assert [choice["prompt_logprobs"] for choice in choices] == [[None, *scored], [None]]
    chat = {"messages": [{"role": "user", "content": "b"}], "max_tokens": 1, "prompt_logprobs": 0}
    reply = post("/v1/chat/completions", json=chat).json()
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]
    assert reply["prompt_logprobs"][0] is None
    assert reply["prompt_logprobs"][1]["115"] == {"logprob": -2.0, "rank": 7, "decoded_token": "s"}
    plain = post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()
    assert "prompt_logprobs" not in plain and "prompt_logprobs" not in plain["choices"][0]


def test_best_of_returns_the_most_likely(server: Running) -> None:
    # The fake's choice 0 is the likeliest and the later ones are less so.
    reply = server.openai().completions.create(model=MODEL, prompt="a", max_tokens=2, n=1, best_of=3)
    assert server.model.engine.submitted[0].params.n == 3
    assert len(reply.choices) == 1
    assert reply.choices[0].logprobs is None
    assert reply.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"n": 129}, "n"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"mirostat": 2, "top_k": 5}, "mirostat"),
        ({"banned_strings": [""]}, "banned_strings"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_refusals_name_the_parameter(server: Running, body, param) -> None:
    reply = server.http().post("/v1/completions", json={"prompt": "a"} | body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert server.model.engine.submitted == []


def test_a_refused_prompt_cancels_its_neighbors(server: Running) -> None:
    server.model.engine.go.clear()
    with pytest.raises(openai.BadRequestError):
        server.openai().completions.create(model=MODEL, prompt=["a", "x" * 5000], max_tokens=1)
    server.model.engine.go.set()
    assert server.model.engine.cancelled == [server.model.engine.submitted[0].request_id]


@pytest.mark.parametrize("prompt", ["x" * 5000, "x" * 3_000_000, [5] * 4097, [[5], [5] * 4097]])
def test_a_prompt_that_is_too_long(server: Running, prompt) -> None:
    reply = server.http().post("/v1/completions", json={"prompt": prompt, "stream": True})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "4,096" in reply.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [[True], [-1], [1, "a"], [[1], []], [2**31], 5, {}, [1.0], [[[1]]]])
def test_a_prompt_of_another_type(server: Running, prompt) -> None:
    reply = server.http().post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"


def test_more_choices_than_are_ever_computed_at_a_time(server: Running) -> None:
    reply = server.http().post("/v1/completions", json={"prompt": ["a"] * 100, "n": 100, "max_tokens": 1})
    assert reply.status_code == 400  # a 503 would be sent again and again
    assert "10,000 choices" in reply.json()["error"]["message"]
    assert server.model.engine.submitted == []


def test_a_reply_that_cannot_be_written_ends_alone(server: Running, monkeypatch) -> None:
    delta = TextFormatter.delta
    monkeypatch.setattr(
        TextFormatter,
        "delta",
        lambda shape, index, event: delta(shape, index, event) if shape._per_prompt == 1 else 1 / 0,
    )
    client = server.openai()
    with pytest.raises(openai.APIError, match="the server failed"):
        list(client.completions.create(model=MODEL, prompt="a", n=2, stream=True))
    assert (
        "".join(
            chunk.choices[0].text
            for chunk in client.completions.create(model=MODEL, prompt="a", max_tokens=3, stream=True)
        )
        == "a b"
    )
