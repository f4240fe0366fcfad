"""What prompt lookup would have brought to an answer that was made without it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._native import SuffixAutomaton
from headrace.engine.scheduler.sequence import agreeing
from headrace.engine.step_share import LookupReplay

DEPTH = 8
"""Tokens of a draft: more than pay in most steps cost more than they bring."""
MIN_KIND = 3
"""See MATCH_KINDS: what was found less surely is right in less than half of the cases."""


def replay_lookup(prompt: Sequence[int], answer: Sequence[int]) -> LookupReplay:
    """Draft where the end of the text stood before, and compare with what came."""
    automaton = SuffixAutomaton()
    automaton.extend(list(prompt))
    at = drafted = accepted = 0
    while at < len(answer):
        left = len(answer) - at - 1  # the token after the last right one is computed anyway
        draft = automaton.draft(min(DEPTH, left)) if left and automaton.match_kind >= MIN_KIND else []
        right = agreeing(draft, list(answer[at : at + len(draft)]))
        drafted += len(draft)
        accepted += right
        automaton.extend(list(answer[at : at + right + 1]))
        at += right + 1
    return LookupReplay(len(answer), drafted, accepted)
