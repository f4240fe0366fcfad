"""A request that would be late is answered by another model, which the reply says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from fake import FakeEngine, FakeModel
from msgspec.structs import replace

from headrace.engine.pacing import PaceOptions
from headrace.engine.request import Targets
from headrace.errors import TargetUnreachable, UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, OutputFinished, Prepared, Started
from headrace.inference.keywords import new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_source import ModelSource, ModelThreads
from headrace.inference.requests import CompletionRequest
from headrace.llm import LLM
from headrace.loading.options import EngineOptions
from headrace.telemetry.request_metrics import ModelMetrics

LATE = TargetUnreachable("the first token is predicted in 2.00 s, the target is 0.1 s: try again later")
DEGRADES = PaceOptions(ttft_s=0.1, slo_policy="degrade", fallback="small")


class Models:
    """Two fake models, of which `large` is the default."""

    def __init__(self, large: FakeModel, small: FakeModel) -> None:
        self.named, self.used = {"large": large, "small": small}, list[str]()
        self.released = 0

    async def acquire(
        self, name: str | None, keep_alive_s: float | None, call: CallContext
    ) -> tuple[Any, Callable[[], None]]:
        call.model = name or "large"
        self.used.append(call.model)
        return self.named[call.model], self._release

    def _release(self) -> None:
        self.released += 1

    def metrics(self, model: object) -> ModelMetrics:
        return ModelMetrics()


def model(name: str, pace: PaceOptions | None = None, refusal: TargetUnreachable | None = None) -> FakeModel:
    engine = FakeEngine()
    engine.limits = replace(engine.limits, pace=pace or PaceOptions())
    engine.refusal = refusal
    return FakeModel(name=name, engine=engine)


def answered(models: Models, slo: Targets | None = None) -> tuple[list[list[InferenceEvent]], CallContext]:
    call = new_call()

    async def run() -> list[list[InferenceEvent]]:
        with ModelThreads(1) as threads:
            handler = LocalHandler(cast("ModelSource", models), threads)
            request = CompletionRequest(id="r", prompts=("ab",), sampling={"max_tokens": 3}, slo=slo)
            found = [list(batch) async for batch in handler.handle(request, call)]
            handler.close()
            return found

    try:
        return asyncio.run(run()), call
    finally:
        for one in models.named.values():
            one.engine.close()


def test_the_fallback_answers_and_the_reply_says_so() -> None:
    models = Models(model("large", DEGRADES, LATE), model("small"))
    batches, call = answered(models)
    assert isinstance(batches[0][0], Prepared) and batches[0][0].model == "small"
    assert isinstance(batches[1][0], Started)
    assert any(isinstance(event, OutputFinished) for batch in batches for event in batch)
    assert sum(isinstance(event, Prepared) for batch in batches for event in batch) == 1
    assert [one.param for one in call.warnings] == ["slo"]
    assert "predicted in 2.00 s" in call.warnings[0].message
    assert "small answers instead of large" in call.warnings[0].message
    assert models.used == ["large", "small"] and models.released == 2


def test_in_time_nothing_changes() -> None:
    batches, call = answered(Models(model("large", DEGRADES), model("small")))
    assert isinstance(batches[0][0], Prepared) and batches[0][0].model == "large"
    assert isinstance(batches[1][0], Started) and not call.warnings


@pytest.mark.parametrize("policy", [PaceOptions(ttft_s=0.1, slo_policy="refuse"), DEGRADES])
def test_a_fallback_that_would_be_late_too_refuses(policy: PaceOptions) -> None:
    models = Models(model("large", DEGRADES, LATE), model("small", policy, LATE))
    with pytest.raises(TargetUnreachable):
        answered(models)
    assert models.used == ["large", "small"] and models.released == 2


def test_a_target_of_the_request_alone_degrades() -> None:
    large = model("large", PaceOptions(slo_policy="degrade", fallback="small"), LATE)
    batches, _ = answered(Models(large, model("small")), Targets(ttft_s=0.1))
    assert isinstance(batches[0][0], Prepared) and batches[0][0].model == "small"


def test_settings_go_together() -> None:
    for given in ({"slo_policy": "degrade"}, {"slo_fallback": "nano"}):
        with pytest.raises(UsageError, match="go together"):
            EngineOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a server"):
        LLM("nano", slo_policy="degrade", slo_fallback="nano")
