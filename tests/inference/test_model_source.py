"""Where handlers get models from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from head_models import head_model
from headrace.errors import ModelLoading
from headrace.inference.keywords import new_call
from headrace.inference.model_source import ManagedModels
from headrace.loading.options import EngineOptions
from headrace.weights.head import TaskName
from headrace.weights.pooling import PoolingKind
from tiny import tiny_model


def test_a_call_whose_model_does_not_load_names_that_model() -> None:
    async def acquire(entry: object, keep_alive_s: float | None, *, user: object) -> object:
        raise ModelLoading("the model is loading: try again in a moment")

    manager: Any = SimpleNamespace(
        find=lambda name: SimpleNamespace(name=name),
        adapted=lambda name: None,
        acquire=acquire,
        serves=lambda name: True,
    )
    call = new_call()
    with pytest.raises(ModelLoading):
        asyncio.run(ManagedModels(manager).acquire("other", None, call))
    assert call.model == "other"


@pytest.mark.parametrize(
    ("golden", "pooling", "tasks"),
    [
        ("encoders/bert", "auto", {"embed"}),  # no modules.json says so
        ("encoders/bert", "none", {"embed", "token_embed"}),
        ("llama2", "auto", {"generate"}),
        ("qwen3", "last", {"embed"}),
        ("heads/bert_masked_lm", "splade", {"sparse_embed"}),
        ("heads/bert_masked_lm", "auto", {"embed"}),
        ("heads/bert_classify", "auto", {"classify"}),
        ("heads/bert_classify", "mean", {"embed"}),
    ],
)
def test_files_and_pooling_say_what_an_unloaded_model_can_do(
    tmp_path: Path,
    golden: str,
    pooling: PoolingKind | Literal["auto", "splade"],
    tasks: set[TaskName],
) -> None:
    make = head_model if golden.startswith("heads/") else tiny_model
    spec = SimpleNamespace(model=str(make(tmp_path, golden)), options=EngineOptions(pooling=pooling))
    manager: Any = SimpleNamespace(entries=[SimpleNamespace(name="it", model=None, spec=spec)])
    models = ManagedModels(manager)
    kinds: tuple[TaskName, ...] = ("generate", "embed", "token_embed", "sparse_embed", "classify")
    assert {kind for kind in kinds if models.able(kind) == "it"} == tasks
