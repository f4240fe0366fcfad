"""How long steps take on this machine, by runs of the engine with prompts that are not the workload's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from headrace.economy.replay import StepSpeed
from headrace.economy.savings.playing import PlayedRequest, embedded, play_at_once
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.engine.step_times import StepWork, attended, fitted_step_times
from headrace.sampling.params import SamplingParams

SHAPES = ((1, 32, 24), (1, 256, 2), (1, 96, 2), (4, 64, 24), (16, 32, 16), (16, 128, 12), (2, 448, 16))
"""Runs as (rows, tokens of each prompt, tokens of each answer)."""
REPEATS = 3


def measured_steps(model: LoadedModel, *, rows: int, repeats: int = REPEATS) -> StepSpeed:
    """The speed of a model that is loaded without drafts. The least time of each run counts: what is longer
    was disturbed by other programs."""
    random = np.random.default_rng(5)
    samples: list[tuple[StepWork, float]] = []
    _timed(model, 1, 32, 4, random)
    for count, prompt, output in SHAPES:
        timed = [_timed(model, count, prompt, output, random) for _ in range(repeats)]
        seconds, steps = min(timed)
        generated = count * (output - 1)
        pairs = count * (attended(0, prompt) + attended(prompt, output - 1))
        work = StepWork(count * prompt / steps, generated / steps, pairs / steps)
        samples.append((work, seconds / steps))
    base_s, prompt_s, row_s, pair_s = fitted_step_times(samples)
    return StepSpeed(
        base_s=base_s, per_prompt_token_s=prompt_s, per_row_s=row_s, per_pair_s=pair_s, max_rows=rows
    )


def _timed(
    model: LoadedModel, count: int, prompt: int, output: int, random: np.random.Generator
) -> tuple[float, int]:
    """Seconds and steps of a run."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    requests = [
        EngineRequest(prompt=tuple(random.integers(2, 8000, prompt).tolist()), params=params, cache=False)
        for _ in range(count)
    ]
    before = model.engine.status().steps
    results = play_at_once(model, requests)
    seconds = max(result.done_s for result in results) - min(result.begun_s for result in results)
    return seconds, max(1, model.engine.status().steps - before)


def measured_paces(
    plain: LoadedModel,
    drafting: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    near: Sequence[tuple[int, ...]],
) -> Mapping[tuple[bool, bool], float]:
    """Times per token with drafts relative to those without, by (drafts of near answers, batching). `near`
    are the near answers of the prompts, () where there is none."""
    paces: dict[tuple[bool, bool], float] = {}
    for with_near in (False, True):
        chosen = [place for place in range(len(prompts)) if near[place] or not with_near]
        for batching in (False, True):
            ratios = [
                _generating_s(drafting, prompts, near if with_near else (), chosen, batching=batching)
                / _generating_s(plain, prompts, (), chosen, batching=batching)
                for _ in range(REPEATS + 1)
            ][1:]  # at first the engine does not know yet what drafts bring
            paces[with_near, batching] = statistics.median(ratios) if chosen else 1.0
    return paces


def _generating_s(
    model: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    near: Sequence[tuple[int, ...]],
    chosen: Sequence[int],
    *,
    batching: bool,
) -> float:
    """Seconds from first to last tokens, in sum."""
    params = SamplingParams(temperature=0, max_tokens=48)
    requests = [
        EngineRequest(prompt=prompts[place], params=params, prediction=near[place] if near else ())
        for place in chosen
    ]
    groups = [requests] if batching else [[one] for one in requests]
    results: list[PlayedRequest] = []
    for group in groups:
        results += play_at_once(model, group)
    return sum(one.done_s - one.first_s for one in results) or 1e-9


def measured_embedding_s(encoder: LoadedModel, texts: Sequence[str]) -> float:
    """Seconds of one text alone, the median."""
    times: list[float] = []
    for text in texts:
        begun_s = time.monotonic()
        embedded(encoder, [text])
        times.append(time.monotonic() - begun_s)
    return statistics.median(times)
