"""Tokens of texts and conversations, and back; what is only kept for later says so."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from in_process import Running, running_server

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    loaded = load_model("novelette", EngineOptions(max_num_seqs=4, max_batch_tokens=64))
    with running_server(loaded) as running:
        yield running
    loaded.close()


def test_a_text_and_back(real: Running) -> None:
    http, tokenizer = real.http(), real.model.tokenizer
    text = "It was a dark and stormy night. Ünïcode 水"
    reply = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert reply["tokens"] == tokenizer.encode(text) and reply["count"] == len(reply["tokens"])
    assert reply["max_model_len"] == real.model.context_length
    assert reply["token_strs"] == [tokenizer.pieces.token_of(token) for token in reply["tokens"]]
    bare = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert bare["tokens"] == tokenizer.encode(text, add_special=False) and bare["token_strs"] is None
    back = http.post("/detokenize", json={"tokens": reply["tokens"]}).json()
    written = tokenizer.decode(reply["tokens"], skip_special=False)
    assert back == {"prompt": written, "content": written}  # vLLM's name and llama.cpp's
    assert http.post("/tokenize", json={"prompt": "", "add_special_tokens": False}).json()["count"] == 0


def test_a_conversation_has_as_many_tokens_as_it_is_charged_for(real: Running) -> None:
    http, body = real.http(), {"messages": HELLO, "chat_template_kwargs": {}}
    counted = http.post("/tokenize", json=body).json()
    reply = real.openai().chat.completions.create(model=real.model.name, messages=HELLO, max_tokens=1)
    assert counted["count"] == reply.usage.prompt_tokens
    prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert "hello" in prompt
    plain = http.post("/tokenize", json={"prompt": prompt, "add_special_tokens": False}).json()
    assert plain["tokens"] == counted["tokens"]
    shorter = http.post("/apply-template", json={**body, "add_generation_prompt": False}).json()["prompt"]
    assert prompt.startswith(shorter)


def test_bad_input_is_named(server: Running) -> None:
    http = server.http()
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "color": 1}, "color"),
        ("/tokenize", {"prompt": "a" * 4096 * 513}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": [999_999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": HELLO, "tools": [{}]}, "tools"),
    ):
        reply = http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (path, reply.text)
    for path in ("/tokenize", "/detokenize", "/apply-template"):
        body = {"prompt": "a", "tokens": [1], "messages": HELLO, "model": "other"}
        fields = {"/tokenize": ("prompt",), "/detokenize": ("tokens",)}.get(path, ("messages",))
        assert http.post(path, json={name: body[name] for name in (*fields, "model")}).status_code == 404


def test_a_suffix_needs_a_model_that_fills_in(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="no tokens for filling in") as caught:
        server.openai().completions.create(model="fake/model", prompt="a", suffix="b")
    assert caught.value.param == "suffix" and caught.value.code == "unsupported_parameter"
    assert server.openai().completions.create(model="fake/model", prompt="a", suffix="").choices


def test_a_suffix(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<|endoftext|>": 4}
    tokenizer = server.model.tokenizer
    monkeypatch.setattr(tokenizer, "id_of", marks.get, raising=False)
    monkeypatch.setattr(tokenizer.pieces, "kind", None, raising=False)
    create = server.openai().completions.create
    reply = create(model="fake/model", prompt=["ab", "c"], suffix="yz", max_tokens=4, echo=True)
    assert [choice.text for choice in reply.choices] == ["aba bé", "ca bé"]
    first, second = server.model.engine.submitted
    assert first.prompt == (256, 1, *b"ab", 2, *b"yz", 3) and second.prompt == (256, 1, *b"c", 2, *b"yz", 3)
    assert first.params.stop_token_ids == (4,)
    with pytest.raises(openai.BadRequestError, match="not token ids"):
        create(model="fake/model", prompt=[1, 2], suffix="b")


def test_moderations_need_a_classifier(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="no classifier is configured"):
        server.openai().moderations.create(input="x")
