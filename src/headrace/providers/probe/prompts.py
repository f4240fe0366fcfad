"""Prompts of a wanted length, each of them new, with a code word at their head."""

from __future__ import annotations

import random

from msgspec import Struct

_TEXT = """able acid aged also area army away baby back ball band bank base bath bear beat been bell best bird
blow blue boat body bone book born both bowl bulk burn bush busy cake call calm came camp card care
case cash cast cell chat city club coal coat code cold come cook cool cope copy core corn cost crew
crop dark data date dawn days dead deal dean dear debt deep deny diet dirt dish disk does done dose
down draw drew drop drug dual duke dust duty each earn ease east easy edge else even ever evil exit
face fact fail fair fall farm fast fate fear feed feel feet"""
WORDS = _TEXT.split()
_CODES = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "indigo", "lagoon")
FIXED_TOKENS = 60
"""About what the instructions of a prompt come to."""
FIRST_TOKENS_PER_WORD = 1.1
_NUMBERS = 9000


class ProbePrompt(Struct, frozen=True):
    """A prompt; an answer by a model that has read its head contains `code`."""

    text: str
    code: str
    words: int


def new_prompt(draws: random.Random, tokens: int, answer_tokens: int, tokens_per_word: float) -> ProbePrompt:
    """A prompt of about so many tokens, which no cache knows, for an answer of at least so many."""
    code = f"{draws.choice(_CODES)}-{draws.randrange(1000, 1000 + _NUMBERS)}"
    words = max(1, round((tokens - FIXED_TOKENS) / tokens_per_word))
    filler = " ".join(draws.choices(WORDS, k=words))
    text = (
        f"The code word is {code}.\n\n{filler}\n\nBegin your answer with the code word of the first line. "
        f"Then write a story in which some of these words occur, of at least {answer_tokens} words. Do not "
        "stop before that."
    )
    return ProbePrompt(text, code, words)
