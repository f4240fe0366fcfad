"""What the process of a fine-tuning job is told, and what it says."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

MODULE: Final = "headrace.distil.adapter_process"
"""The process. It is known by its name: nothing here imports what it needs."""

METRICS_FILE: Final = "step_metrics.csv"
"""In `work`: the losses of all steps, also of those before the process was ended and begun again."""


class AdapterPlan(Struct, frozen=True, kw_only=True):
    """How an adapter learns. `batch_size` is in answers; None: as many as have about 2,048 tokens. `rate` is
    AdamW's at its highest."""

    epochs: Annotated[int, Meta(ge=1, le=50)] = 3
    batch_size: Annotated[int, Meta(ge=1, le=256)] | None = None
    rate: Annotated[float, Meta(gt=0, le=1)] = 2e-4
    rank: Annotated[int, Meta(ge=1, le=128)] = 16
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 42


class AdapterOrder(Struct, frozen=True, kw_only=True):
    """The base, a folder; the data, files of lines; where the adapter and what is kept meanwhile go. No
    step begins while the file `pause` was touched lately. With `skips_unfit` conversations that the base
    cannot read, such as longer ones than its context, are left out; they are an error otherwise.

    With `whole` all weights learn, and a folder of a model is made in place of an adapter. Of the answers of
    the file `said` they learn what the model in the folder `teacher` finds likely, where both have the same
    tokens; of all others the answers alone."""

    base: str
    training: str
    validation: str | None
    out: str
    work: str
    plan: AdapterPlan
    threads: int
    hours: float
    pause: str | None = None
    skips_unfit: bool = False
    whole: bool = False
    teacher: str | None = None
    said: str | None = None


class AdapterNote(Struct, frozen=True, kw_only=True):
    """A line that the process writes.

    began: the data has been read, `steps` are to be taken. step: one of them, with the mean `loss` (nats) of
    a learned token. made: the adapter is there. failed: `message` says why there is none.
    """

    kind: Literal["began", "step", "made", "failed"]
    message: str = ""
    param: str | None = None
    step: int = 0
    steps: int = 0
    loss: float | None = None
    tokens: int = 0
