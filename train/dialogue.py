"""The chat format of `mini` and `nano`: markers, template, tokenized conversations and their loss masks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from stream import BEGIN, END, END_ID, train_tokenizer
from tokenizers import Tokenizer

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CALL_MARKS = ("<tool_call>", "</tool_call>")
MARKS = (*ROLES, *CALL_MARKS)
ASSISTANT_ID = 2 + ROLES.index("<|assistant|>")

TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools in the format of the chat API; only the assistant's messages are trained on."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids, and for each whether it is trained on; both [length]."""

    ids: np.ndarray
    learned: np.ndarray


def ask(question: str, answer: str, instruction: str = "") -> Conversation:
    """One question with its answer."""
    system = ({"role": "system", "content": instruction},) if instruction else ()
    return Conversation(
        (*system, {"role": "user", "content": question}, {"role": "assistant", "content": answer})
    )


def up_to_turn(conversation: Conversation, turn: int) -> Conversation:
    """The conversation through the assistant's message number `turn`, counted from 0."""
    ends = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    return Conversation(conversation.messages[: ends[turn] + 1], conversation.tools)


class Writer:
    """Renders conversations with the chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(TEMPLATE_PATH.read_text())
        self._tokenizer = tokenizer

    def text(self, conversation: Conversation) -> str:
        """The whole conversation."""
        return self._template.render(
            messages=conversation.messages, tools=conversation.tools, bos_token=BEGIN, eos_token=END
        )

    def tokens(self, conversation: Conversation) -> Tokens:
        """Its tokens; trained on are those from after `<|assistant|>` through the end of that turn."""
        ids = np.array(self._tokenizer.encode(self.text(conversation), add_special_tokens=False).ids)
        learned = np.zeros(len(ids), bool)
        ends = np.flatnonzero(ids == END_ID)
        for begin in np.flatnonzero(ids == ASSISTANT_ID):
            learned[begin + 1 : ends[ends > begin][0] + 1] = True
        return Tokens(ids, learned)

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """Its tokens up to the beginning of the last message, which is the assistant's."""
        text = self._template.render(
            messages=conversation.messages[:-1],
            tools=conversation.tools,
            bos_token=BEGIN,
            eos_token=END,
            add_generation_prompt=True,
        )
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def make_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """The byte-level BPE tokenizer with the markers of the format."""
    content = json.loads(train_tokenizer(texts, vocabulary, MARKS).to_str())
    # Special tokens are omitted from decoded text, but the markers of a call must be readable there.
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in CALL_MARKS
    return Tokenizer.from_str(json.dumps(content))
