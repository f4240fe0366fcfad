"""Workload of a step benchmark: random prompts, batch size, and tokens to generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from headrace.bench.random_checkpoint import RandomCheckpoint, no_tokenizer, read_config_file
from headrace.errors import UsageError
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel, prepare, prepare_checkpoint


class Workload(Struct, frozen=True, kw_only=True):
    """`model` is a name as elsewhere; alternatively `config` is a config.json, run with random weights."""

    model: str | None
    config: Path | None
    prompt: int
    generate: int
    batch: int

    def __post_init__(self) -> None:
        if self.model is not None and self.config is not None:
            raise UsageError("MODEL and --config are both given: name one", param="config")
        for name in ("prompt", "generate", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}, it must be at least 1", param=name)

    @property
    def name(self) -> str:
        """Display name of the model."""
        return str(self.config) if self.config is not None else self.model or "the bundled model"

    def to_json(self) -> dict[str, Any]:
        """All fields, for the report."""
        return asdict(self) | {"config": None if self.config is None else str(self.config)}


def prepare_workload(workload: Workload, options: EngineOptions) -> PlannedModel:
    """The planned model. Raises the errors of loading, and UsageError if its context is too short."""
    try:
        if workload.config is None:
            return prepare(workload.model, options)
        checkpoint, path = RandomCheckpoint(read_config_file(workload.config)), workload.config
        return prepare_checkpoint(checkpoint, options, path.stem, path, no_tokenizer(), None)
    except UsageError as error:
        if error.param != "max_model_len":
            raise
        raise UsageError(
            f"--prompt {workload.prompt:,} and --generate {workload.generate:,} do not fit: {error.message}",
            param="prompt",
        ) from None


def random_prompts(workload: Workload, vocabulary: int) -> list[tuple[int, ...]]:
    """`batch` prompts without shared prefixes."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, vocabulary, (workload.batch, workload.prompt))
    return [tuple(row) for row in drawn.tolist()]
