"""The bodies of replies about served models and the server's health."""

from __future__ import annotations

from typing import Literal

import msgspec

ModelState = Literal["unloaded", "loading", "loaded", "failed", "remote"]


class ModelCard(msgspec.Struct, frozen=True):
    """A served model. What is only known once it is loaded is null before; `in_use` counts requests that keep
    it in memory, `failure` says what went wrong, `restarts` counts dead worker processes. An adapter has
    its model as `parent`."""

    id: str
    created: int
    context_length: int | None
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "headrace"
    state: ModelState = "loaded"
    aliases: tuple[str, ...] = ()
    memory_bytes: int | None = None
    in_use: int = 0
    restarts: int = 0
    failure: str | None = None
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The served models."""

    data: list[ModelCard]
    object: str = "list"


class JournalHealth(msgspec.Struct, frozen=True):
    """The journal: whether it takes records (`ok`, `paused`), or a part of it was `damaged` and set aside."""

    state: Literal["ok", "paused", "damaged"]
    running: int
    resumed: int
    bytes: int
    dropped: int
    damages: list[str]
    problem: str | None


class HealthBody(msgspec.Struct, frozen=True):
    """Whether the engines' loops make progress, with the sums of the numbers by which that was judged, and
    the state of each model."""

    status: str
    running: int
    waiting: int
    steps: int
    free_pages: int
    page_count: int
    models: dict[str, str] = {}
    journal: JournalHealth | msgspec.UnsetType = msgspec.UNSET


class ReadyBody(msgspec.Struct, frozen=True):
    """Whether requests are taken."""

    status: str
    model: str
