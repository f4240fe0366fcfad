"""inspect-ai evaluates a model of this server through the OpenAI API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import Running

inspect_ai: Any = pytest.importorskip("inspect_ai", reason="needs inspect-ai (with lm-eval 900 MB)")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what inspect-ai calls, and what it leaves open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_evaluation(server: Running, tmp_path: Path) -> None:
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    model = get_model(f"openai-api/headrace/{server.model.name}", base_url=f"{server.url}/v1", api_key="none")
    task = inspect_ai.Task(
        dataset=[Sample(input=f"Say {number}.", target="") for number in range(4)],
        solver=generate(),
        scorer=includes(),
    )
    [log] = inspect_ai.eval(
        task,
        model=model,
        log_dir=str(tmp_path),
        display="none",
        model_args={},
        **GenerateConfig(max_tokens=8, temperature=0.0, seed=1).model_dump(exclude_none=True),
    )
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    [usage] = log.stats.model_usage.values()
    assert usage.input_tokens > 0 and usage.output_tokens > 0
    assert all(sample.output.completion for sample in log.samples)
