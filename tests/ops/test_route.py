"""Routing on hand-made examples: the definition for all executors."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.ops.route import route
from headrace.ops.value import Array


def gates(logits: list[float], *, bias: list[float] | None = None, **attrs: object) -> list[float]:
    settings = {"kind": "softmax", "top_k": 2, "groups": 1, "top_groups": 1, "normalize": 1, "scale": 1.0}
    given = None if bias is None else np.array(bias, np.float32)
    made: Array = route.body(np.array([logits], np.float32), given, **settings | attrs)
    assert made.dtype == np.float32
    return made[0].tolist()


def test_softmax_with_and_without_normalizing() -> None:
    logits = np.log([1, 4, 2, 3]).tolist()
    assert gates(logits) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert gates(logits, normalize=0) == pytest.approx([0, 0.4, 0, 0.3])
    assert gates(logits, top_k=1, scale=2.5) == pytest.approx([0, 2.5, 0, 0])


def test_ties_go_to_the_lowest_index() -> None:
    assert gates([1, 2, 2, 2]) == pytest.approx([0, 0.5, 0.5, 0])
    assert gates([0, 0, 0, 0], top_k=3) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_the_sigmoid_bias_affects_the_choice_but_not_the_gates() -> None:
    logits = [0.0, 0.0, np.log(3), -20.0]  # sigmoids 0.5, 0.5, 0.75, 0
    made = gates(logits, kind="sigmoid", bias=[0, -0.1, 0, 0.8], normalize=0)
    assert made == pytest.approx([0, 0, 0.75, 2e-9], rel=0.1)
    assert gates(logits, kind="sigmoid", scale=2.0) == pytest.approx([0.8, 0, 1.2, 0])


def test_experts_are_chosen_in_the_best_groups_only() -> None:
    # The largest is alone in its group; the sums of the two best select groups 1 and 2.
    made = gates(
        [9, -9, -9, 2, 3, -9, 2, 2, -9], kind="sigmoid", top_k=3, groups=3, top_groups=2, normalize=0
    )
    assert [i for i, gate in enumerate(made) if gate] == [3, 4, 6]
