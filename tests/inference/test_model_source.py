"""Where handlers get models from."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ModelLoading
from headrace.inference.keywords import new_call
from headrace.inference.model_source import ManagedModels


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
