"""How long steps take on this machine, by runs of the engine with prompts that are not the workload's.

All models and formats are measured in rounds, one after the other and every second round in the reverse
order, so that what disturbs the machine for a while disturbs all of them. Medians of the rounds count, and
rounds drawn anew say how uncertain they are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.economy.replay import StepSpeed
from headrace.economy.savings.playing import PlayedRequest, embedded, play_at_once
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.engine.step_times import StepWork, attended, fitted_step_times
from headrace.sampling.params import SamplingParams

SHAPES = ((1, 32, 24), (1, 256, 2), (1, 96, 2), (4, 64, 24), (16, 32, 16), (16, 128, 4), (2, 448, 16))
"""Runs as (rows, tokens of each prompt, tokens of each answer)."""
DRAWS = 200
Format = tuple[str, bool, bool]
"""A model, whether it is quantized, and whether its KV is."""
Sample = tuple[StepWork, float]


class Rounds(Struct, frozen=True):
    """Of each format, round and shape the mean work of a step and its seconds."""

    samples: Mapping[Format, Sequence[Sequence[Sample]]]

    def speed(self, format_: Format, rows: int) -> StepSpeed:
        """By the medians."""
        a, b, c, d = _fitted(self.samples[format_], range(len(self.samples[format_])))
        return StepSpeed(base_s=a, per_prompt_token_s=b, per_row_s=c, per_pair_s=d, max_rows=rows)

    def draws(self, seed: int = 3) -> dict[Format, NDArray[np.float64]]:
        """Fits [DRAWS, 4] of rounds drawn anew, the same for all formats: what disturbed a round did so for
        all of them."""
        random = np.random.default_rng(seed)
        count = len(next(iter(self.samples.values())))
        chosen: list[list[int]] = random.integers(0, count, (DRAWS, count)).tolist()
        return {
            name: np.array([_fitted(rounds, some) for some in chosen])
            for name, rounds in self.samples.items()
        }


def _fitted(rounds: Sequence[Sequence[Sample]], chosen: Sequence[int]) -> tuple[float, float, float, float]:
    """Of each shape the run of the median time."""
    shapes = [[rounds[index][shape] for index in chosen] for shape in range(len(rounds[0]))]
    return fitted_step_times([sorted(one, key=lambda sample: sample[1])[len(one) // 2] for one in shapes])


def measured_rounds(models: Mapping[Format, LoadedModel], repeats: int) -> Rounds:
    """Speeds of models that are loaded without drafts."""
    random = np.random.default_rng(5)
    samples: dict[Format, list[list[Sample]]] = {name: [] for name in models}
    for model in models.values():
        _sample(model, 1, 32, 4, random)
    for number in range(repeats):
        for found in samples.values():
            found.append([])
        for shape in SHAPES:
            for name in list(models)[:: -1 if number % 2 else 1]:
                samples[name][-1].append(_sample(models[name], *shape, random))
    return Rounds(samples)


def _sample(model: LoadedModel, count: int, prompt: int, output: int, random: np.random.Generator) -> Sample:
    """The mean step of a run."""
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    requests = [
        EngineRequest(prompt=tuple(random.integers(2, 8000, prompt).tolist()), params=params, cache=False)
        for _ in range(count)
    ]
    before = model.engine.status().steps
    results = play_at_once(model, requests)
    seconds = max(result.done_s for result in results) - min(result.begun_s for result in results)
    steps = max(1, model.engine.status().steps - before)
    pairs = count * (attended(0, prompt) + attended(prompt, output - 1))
    return StepWork(count * prompt / steps, count * (output - 1) / steps, pairs / steps), seconds / steps


def measured_paces(
    plain: LoadedModel,
    drafting: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    near: Sequence[tuple[int, ...]],
    repeats: int,
) -> dict[tuple[bool, bool], list[float]]:
    """Times per token with drafts relative to those without, of each round, by (drafts of near answers,
    batching). `near` are the near answers of the prompts, () where there is none."""
    paces: dict[tuple[bool, bool], list[float]] = {}
    for with_near in (False, True):
        chosen = [place for place in range(len(prompts)) if near[place] or not with_near]
        for batching in (False, True):
            ratios = [
                _generating_s(drafting, prompts, near if with_near else (), chosen, batching=batching)
                / _generating_s(plain, prompts, (), chosen, batching=batching)
                for _ in range(repeats + 1)
            ][1:]  # at first the engine does not know yet what drafts bring
            paces[with_near, batching] = ratios if chosen else [1.0] * repeats
    return paces


def drawn_paces(
    paces: Mapping[tuple[bool, bool], Sequence[float]], seed: int = 4
) -> dict[tuple[bool, bool], NDArray[np.float64]]:
    """Medians [DRAWS] of rounds drawn anew, relative to the median found."""
    random = np.random.default_rng(seed)
    found: dict[tuple[bool, bool], NDArray[np.float64]] = {}
    for name, ratios in paces.items():
        values = np.array(ratios)
        drawn = values[random.integers(0, len(values), (DRAWS, len(values)))]
        found[name] = np.median(drawn, axis=1) / np.median(values)
    return found


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
