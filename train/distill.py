"""Distillation: a student learns the teacher's distribution on the teacher's own answers.

Reusable parts: `record_answers` generates the teacher's answers to prompts of any part of a mixture,
`Recorded` draws the resulting conversations, and `objective.distillation` is the loss. `nano.py` combines
them.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from data.words import pick
from dialogue import Conversation, Writer, up_to_turn
from mixture import Part
from numpy.random import Generator

from headrace import LLM
from headrace.distil.answers import recorded

LONGEST_ANSWER = 200  # tokens


class Recorded:
    """Draws recorded conversations."""

    def __init__(self, name: str, conversations: Sequence[Conversation]) -> None:
        self.name = name
        self._conversations = conversations

    def draw(self, random: Generator) -> Conversation:
        """One of them."""
        return pick(self._conversations, random)


def record_answers(
    llm: LLM, writer: Writer, part: Part, count: int, path: Path, *, seed: int, temperature: float = 0.0
) -> Recorded:
    """The model's own answers at one turn each of `count` conversations of `part`.

    They are written to `path` line by line, so that an interrupted run resumes where it stopped.
    """

    def answer(keys: range) -> list[str]:
        asked = [_asked(part, np.random.default_rng([seed, 4, key])) for key in keys]
        answers = llm.generate_batch(
            [writer.prompt_ids(conversation) for conversation in asked],
            max_tokens=LONGEST_ANSWER,
            temperature=temperature,
            seed=seed,
        )
        return [
            json.dumps({"messages": _answered(one, answer.text), "tools": one.tools})
            for one, answer in zip(asked, answers, strict=True)
        ]

    def show(done: int, total: int) -> None:
        print(f"\r{part.name}: {done:,}/{total:,} answers", end="", file=sys.stderr, flush=True)

    read = [json.loads(line) for line in recorded(path, count, answer, show)]
    return Recorded(part.name, [Conversation(tuple(one["messages"]), tuple(one["tools"])) for one in read])


def _asked(part: Part, random: Generator) -> Conversation:
    """A conversation through one of the assistant's messages."""
    conversation = part.draw(random)
    turns = sum(message["role"] == "assistant" for message in conversation.messages)
    return up_to_turn(conversation, int(random.integers(turns)))


def _answered(conversation: Conversation, text: str) -> list[dict[str, object]]:
    return [*conversation.messages[:-1], {"role": "assistant", "content": text}]
