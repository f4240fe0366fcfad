"""The same plan as in the simulator, run by real engines: what it then costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from msgspec import Struct

from headrace.economy.levers import (
    BATCHING,
    HEDGING,
    HOUR_S,
    KV_QUANTIZATION,
    LARGE,
    PREFIX,
    QUANTIZATION,
    SMALL,
    SPECULATION,
    LeverCall,
    LeverPrices,
    LeverSpeeds,
    PlannedCall,
    lever_cost,
    plan,
)
from headrace.economy.savings.models import load_large, load_small, options_of
from headrace.economy.savings.playing import PlayedCall, busy_seconds, play
from headrace.economy.shapley import Levers
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams


class StackRun(Struct, frozen=True, kw_only=True):
    """One set of levers: measured and simulated, in nano-dollars of the machine's busy time."""

    added: str
    measured_nano: int
    simulated_nano: int

    @property
    def error(self) -> float:
        """Of the simulator, relative."""
        return self.simulated_nano / self.measured_nano - 1 if self.measured_nano else 0.0


class EngineReplay:
    """Runs plans. `near` are near answers by place in the traffic."""

    def __init__(
        self,
        calls: Sequence[LeverCall],
        near: Mapping[int, tuple[int, ...]],
        speeds: LeverSpeeds,
        prices: LeverPrices,
        options: EngineOptions,
        config: Path | None,
    ) -> None:
        self._calls, self._near, self._speeds, self._prices = calls, near, speeds, prices
        self._options, self._config = options, config

    def run(self, added: str, levers: Levers) -> StackRun:
        """Load the models as the levers say, and serve the traffic."""
        planned = plan(self._calls, levers, self._speeds)
        quantized, kv = QUANTIZATION in levers, KV_QUANTIZATION in levers
        rows = self._speeds.rows if BATCHING in levers else 1
        with ExitStack() as stack:
            options = options_of(
                self._options, quantized=quantized, kv=kv, rows=rows, drafts=SPECULATION in levers
            )
            small = stack.enter_context(closing(load_small(options)))
            plain = options_of(self._options, quantized=quantized, kv=kv, rows=rows)
            large = stack.enter_context(closing(load_large(self._config, plain, small)))
            models = {SMALL: small, LARGE: large}
            _warm(models)
            jobs = [self._played(one, models, cache=PREFIX in levers) for one in planned if one.model]
            busy_s = busy_seconds(play(jobs)) if jobs else 0.0
        busy_s += sum(one.other_s for one in planned)
        simulated = lever_cost(self._calls, levers - {HEDGING}, self._speeds, self._prices)
        return StackRun(
            added=added,
            measured_nano=round(busy_s * self._prices.node_hour / HOUR_S),
            simulated_nano=simulated.nano_usd,
        )

    def _played(self, one: PlannedCall, models: Mapping[str, LoadedModel], *, cache: bool) -> PlayedCall:
        call, model = self._calls[one.call], str(one.model)
        prompt, output = call.work(model)
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=model == LARGE)
        request = EngineRequest(
            prompt=prompt,
            params=params,
            cache=cache,
            prediction=self._near.get(one.call, ()) if one.near else (),
        )
        return PlayedCall(call.at_s, models[model], request)


def _warm(models: Mapping[str, LoadedModel]) -> None:
    """What a first request pays once, such as memory that is not there yet."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    request = EngineRequest(prompt=tuple(range(2, 34)), params=params, cache=False)
    play([PlayedCall(0.0, model, request) for model in models.values()])
    time.sleep(0.05)
