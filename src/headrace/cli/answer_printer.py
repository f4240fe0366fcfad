"""One answer on the command line: its text as it comes."""

from __future__ import annotations

import sys

from headrace.cli.terminal import DIM, PLAIN, is_styled
from headrace.inference.completion import Completion, CompletionChunk
from headrace.llm import LLM


def fills_context(completion: Completion, llm: LLM) -> bool:
    """Whether the answer ended because no more tokens fit."""
    used = completion.usage.prompt_tokens + completion.usage.completion_tokens
    return completion.finish_reason == "length" and used >= llm.model.context_length


class AnswerPrinter:
    """Writes an answer to stdout as it comes. Reasoning is shown on a terminal only, dimmed, before it."""

    def __init__(self, *, echo: bool = True) -> None:
        self._echo = echo
        self._shows_reasoning = sys.stdout.isatty()
        self._styled = is_styled(sys.stdout)
        self._reasoning = False
        self._last = ""
        self.text = ""

    def print(self, chunk: CompletionChunk) -> None:
        """Write a chunk."""
        if chunk.choice != 0:
            return
        self.text += chunk.text
        if not self._echo:
            return
        if chunk.reasoning and self._shows_reasoning:
            self._write(("" if self._reasoning or not self._styled else DIM) + chunk.reasoning)
            self._reasoning = True
        if chunk.text:
            self._write(self._reasoning_end() + chunk.text)

    def end(self) -> None:
        """Finish the line, unless the answer did."""
        if self._echo:
            end = self._reasoning_end()
            self._write(end if (end or self._last).endswith("\n") else end + "\n")

    def _reasoning_end(self) -> str:
        """What sets the answer off from reasoning before it."""
        ended, self._reasoning = self._reasoning, False
        return ((PLAIN if self._styled else "") + "\n") if ended else ""

    def _write(self, text: str) -> None:
        self._last = text or self._last
        sys.stdout.write(text)
        sys.stdout.flush()
