"""Do trees of drafts yield more tokens per step than chains with as many rows? Counted on model answers.

    python bench/draft_trees.py PROMPTS.jsonl [...] [--model mini] [--temperature 0] [--prompts 40]

Replays prompt lookup on every answer: at each step, find the longest suffix that occurred before; the
tokens that followed it there are the draft, as many as there are rows. A tree gives some rows to a branch:
the tokens that followed that suffix (or a shorter one) at a place where the continuation differs. Exact
acceptance takes a token if it equals the token that came. Prints tokens per step; does not measure speed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from headrace import LLM
from headrace.chat.messages import Message
from headrace.chat.prompt import prepare

ROWS = (2, 4, 8, 16)
IN_BRANCH = (0, 1, 2)
LONGEST = 32  # longest suffix that is compared

Text = Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="PROMPTS.jsonl")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=40, help="prompts per file")
    parser.add_argument("--tokens", type=int, default=160, help="maximum tokens per answer")
    asked = parser.parse_args()
    with LLM(asked.model, weights=asked.weights) as llm:
        for path in asked.files:
            report(path.stem, answers(llm, path, asked))


def answers(llm: LLM, path: Path, asked: argparse.Namespace) -> list[tuple[int, Text]]:
    """For each prompt its length, and the tokens of prompt and answer."""
    template, encode = llm.model.template, llm.model.tokenizer.encode
    assert template is not None
    prompts: list[list[int]] = []
    for line in path.read_text().splitlines()[: asked.prompts]:
        message = Message("user", json.loads(line)["prompt"])
        prompts.append(list(encode(prepare(template, [message]).text, add_special=False)))
    done = llm.generate_batch(prompts, max_tokens=asked.tokens, temperature=asked.temperature, seed=1)
    return [(len(prompt), [*prompt, *answer.tokens]) for prompt, answer in zip(prompts, done, strict=True)]


def report(job: str, texts: Sequence[tuple[int, Text]]) -> None:
    """Print one line per number of rows."""
    for rows in ROWS:
        found = [tokens_a_step(texts, rows, branch) for branch in IN_BRANCH if branch < rows]
        chain, *trees = found
        shown = ", ".join(f"{tree:.3f} ({tree / chain - 1:+.1%})" for tree in trees)
        print(f"{job:10} {rows:2} rows: {chain:.3f} as a chain; 1, 2 of them in a branch: {shown}")


def tokens_a_step(texts: Sequence[tuple[int, Text]], rows: int, branch: int) -> float:
    """Mean over all answers."""
    steps = tokens = 0
    for start, text in texts:
        at = start
        while at < len(text):
            trunk, other = places(text, at)
            came = 0
            if trunk is not None:
                came = agreeing(text, at, trunk, rows if other is None else rows - branch)
                if came == 0 and other is not None:
                    came = agreeing(text, at, other, branch)
            steps += 1
            tokens += min(came + 1, len(text) - at)
            at += came + 1
    return tokens / steps


def places(text: Text, at: int) -> tuple[int | None, int | None]:
    """The last place where the longest suffix of text[:at] occurred, and the last place where it, or the
    longest shorter suffix with such a place, was followed by a different token.
    """
    lengths = {place: common_end(text, place, at) for place in range(1, at)}
    longest = max(lengths.values(), default=0)
    if longest == 0:
        return None, None
    trunk = max(place for place, length in lengths.items() if length == longest)
    others = [(length, place) for place, length in lengths.items() if length and text[place] != text[trunk]]
    return trunk, max(others)[1] if others else None


def common_end(text: Text, a: int, b: int) -> int:
    """Length of the common suffix of text[:a] and text[:b]."""
    most = min(a, LONGEST)
    return next((k for k in range(most) if text[a - 1 - k] != text[b - 1 - k]), most)


def agreeing(text: Text, at: int, place: int, count: int) -> int:
    """How many of the `count` tokens from `place` on, repeated periodically, equal those at `at`."""
    period = at - place
    for k in range(count):
        if at + k >= len(text) or text[place + k % period] != text[at + k]:
            return k
    return count


if __name__ == "__main__":
    main()
