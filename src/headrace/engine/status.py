"""An engine's limits and its state as others see them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """`context_length` in tokens; `max_waiting` sequences may queue; one class of priority per `ageing_s`."""

    context_length: int
    max_sequences: int
    max_waiting: int = 4096
    ageing_s: float = 5.0

    @property
    def max_choices(self) -> int:
        """Most choices that may be queued or running."""
        return self.max_waiting + self.max_sequences


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot. `last_step_s` is the monotonic time at which the loop last made progress.

    `preemptions`, and the `masks` of grammars with the seconds they took, are counted since the start.
    """

    running: int
    waiting: int
    free_pages: int
    available_pages: int
    page_count: int
    steps: int
    last_step_s: float
    alive: bool
    preemptions: int = 0
    masks: int = 0
    mask_s: float = 0.0
