"""What the tests of packed weights pack."""

from __future__ import annotations

from headrace.weights.packed import Wanted

SHAPES = {"a": (100, 96), "b": (32, 40), "c": (7, 33), "embed": (65, 64)}
WANTED = [Wanted(name, n, k, "f32") for name, (n, k) in SHAPES.items()]
