"""Chat templates from GGUF metadata."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.chat.messages import Message
from headrace.errors import CorruptFile
from headrace.weights.gguf.chat_template import gguf_template
from headrace.weights.gguf.tokenizer import gguf_tokenizer

TOKENS = ["<s>", "</s>", "a", "b", "Ġ"]
METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.padding_token_id": 3,
}
MESSAGES = [Message(role="user", content="Hi")]


def render(metadata: dict[str, Any], **inputs: Any) -> str:
    template = gguf_template(metadata, gguf_tokenizer(metadata))
    assert template is not None
    return template.render(MESSAGES, **inputs)


def test_no_template() -> None:
    assert gguf_template(METADATA, gguf_tokenizer(METADATA)) is None


def test_tokens_by_their_ids() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ sep_token is defined }}"
    )
    assert render(METADATA | {"tokenizer.chat_template": source}) == "<s>Hi</s>bFalse"


def test_the_variant_for_tools() -> None:
    metadata = METADATA | {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert (render(metadata), render(metadata, tools=[tool])) == ("plain", "tools")


def test_a_template_that_is_not_a_string() -> None:
    metadata = METADATA | {"tokenizer.chat_template": 5}
    with pytest.raises(CorruptFile, match=r"tokenizer\.chat_template is 5, a string expected"):
        gguf_template(metadata, gguf_tokenizer(metadata))
