"""The chat format of `mini` and `nano`: marks, template, conversations as tokens and what is learned."""

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
    """Messages and tools as the chat API spells them; the assistant's messages are what is learned."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids, and of each whether it is learned; both [length]."""

    ids: np.ndarray
    learned: np.ndarray


def ask(question: str, answer: str, instruction: str = "") -> Conversation:
    """One question with its answer."""
    system = ({"role": "system", "content": instruction},) if instruction else ()
    return Conversation(
        (*system, {"role": "user", "content": question}, {"role": "assistant", "content": answer})
    )


def up_to_turn(conversation: Conversation, turn: int) -> Conversation:
    """The conversation up to and with the assistant's message number `turn`, from 0."""
    ends = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    return Conversation(conversation.messages[: ends[turn] + 1], conversation.tools)


class Writer:
    """Writes conversations as the chat template does."""

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
        """Its tokens; learned is what stands after `<|assistant|>` up to and with the end of that turn."""
        ids = np.array(self._tokenizer.encode(self.text(conversation), add_special_tokens=False).ids)
        learned = np.zeros(len(ids), bool)
        ends = np.flatnonzero(ids == END_ID)
        for begin in np.flatnonzero(ids == ASSISTANT_ID):
            learned[begin + 1 : ends[ends > begin][0] + 1] = True
        return Tokens(ids, learned)

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """Its tokens up to where the last message, which is the assistant's, begins."""
        text = self._template.render(
            messages=conversation.messages[:-1],
            tools=conversation.tools,
            bos_token=BEGIN,
            eos_token=END,
            add_generation_prompt=True,
        )
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def make_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """The byte-level BPE tokenizer with the marks of the format."""
    content = json.loads(train_tokenizer(texts, vocabulary, MARKS).to_str())
    # A special token is left out of decoded text, but the marks of a call have to be read there.
    for token in content["added_tokens"]:
        token["special"] = token["content"] not in CALL_MARKS
    return Tokenizer.from_str(json.dumps(content))
