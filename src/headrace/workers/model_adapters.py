"""The adapters of a server's models: by name, loaded and unloaded while requests run."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from headrace.engine.client import LoadedModel
from headrace.errors import HeadraceError, InvalidRequest, ModelNotFound, OutOfMemory
from headrace.loading.adapters import stored_bytes

LOG = logging.getLogger("headrace.workers")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_ADAPTERS = 256
"""Of one model."""


class NamedAdapter(Struct, eq=False):
    """An adapter of a model. Without a `digest` it is not loaded yet, or `failure` says why it cannot be."""

    name: str
    path: Path
    digest: str = ""
    rank: int = 0
    nbytes: int = 0
    failure: HeadraceError | None = None
    created_s: int = field(default_factory=lambda: int(time.time()))


class ModelAdapters:
    """The adapters of one model, those of its spec first. Lives on the event loop."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._named = {name: NamedAdapter(name, Path(path).expanduser()) for name, path in given.items()}
        self._changing = asyncio.Lock()

    @property
    def named(self) -> list[NamedAdapter]:
        """All of them."""
        return list(self._named.values())

    @property
    def nbytes(self) -> int:
        """Bytes of those that are loaded."""
        return sum({one.digest: one.nbytes for one in self._named.values()}.values())

    def find(self, name: str) -> NamedAdapter | None:
        """The adapter of that name."""
        return self._named.get(name)

    async def load(
        self, model: LoadedModel, name: str, path: Path, left: Callable[[], int], *, in_place: bool = False
    ) -> NamedAdapter:
        """Load an adapter under a new name; `in_place` also under one that is taken, whose requests so far
        keep the old one. `left` gives the bytes that nothing takes. Raises what prevents it; then nothing has
        changed."""
        check_name(name)
        async with self._changing:
            before = self._named.get(name)
            if before is not None and not in_place:
                raise InvalidRequest(
                    f"the adapter {name!r} is loaded already: unload it first, or send load_inplace",
                    param="lora_name",
                )
            if before is None and len(self._named) >= MAX_ADAPTERS:
                raise InvalidRequest(
                    f"{model.name} has {len(self._named)} adapters, at most {MAX_ADAPTERS}: unload one",
                    param="lora_name",
                )
            loaded = NamedAdapter(name, path)
            await _load(model, loaded, left())
            self._named[name] = loaded
            self._drop(model, before)
            return loaded

    def remember(self, name: str, path: Path) -> None:
        """An adapter that is loaded with its model, which is not loaded now."""
        check_name(name)
        self._named.setdefault(name, NamedAdapter(name, path))

    async def unload(self, model: LoadedModel | None, name: str) -> None:
        """Take no more requests for it. ModelNotFound."""
        async with self._changing:
            gone = self._named.pop(name, None)
            if gone is None:
                raise ModelNotFound(f"the adapter {name[:200]!r} is not loaded", param="lora_name")
            self._drop(model, gone)

    async def load_all(self, model: LoadedModel, left: Callable[[], int]) -> None:
        """The model was loaded: load all of its adapters. What cannot be loaded says so when it is asked
        for."""
        async with self._changing:
            before = [(one, one.digest or None) for one in self._named.values()]
            for one, _ in before:  # none of them takes memory now
                one.digest, one.nbytes, one.failure = "", 0, None
            for one, expected in before:
                try:
                    await _load(model, one, left(), expected)
                except HeadraceError as error:
                    one.failure = error
                    LOG.error(
                        "the adapter %s of %s cannot be loaded: %s", one.name, model.name, error.message
                    )

    def _drop(self, model: LoadedModel | None, gone: NamedAdapter | None) -> None:
        used = {one.digest for one in self._named.values()}
        if model is not None and gone is not None and gone.digest and gone.digest not in used:
            model.engine.unload_adapter(gone.digest)


async def _load(
    model: LoadedModel, adapter: NamedAdapter, left_bytes: int, expected: str | None = None
) -> None:
    def load() -> None:
        stored = stored_bytes(adapter.path)
        if stored > left_bytes:
            raise OutOfMemory(
                f"the adapter has {stored / 1e6:,.0f} MB, {max(left_bytes, 0) / 1e6:,.0f} MB of the memory"
                " for models are left: unload another adapter or model",
                needed_bytes=stored,
            )
        info = model.engine.load_adapter(adapter.path)
        if expected not in (None, info.digest):
            LOG.warning("the files of the adapter %s have changed since it was loaded", adapter.name)
        adapter.digest, adapter.rank, adapter.nbytes = info.digest, info.rank, info.nbytes

    await asyncio.to_thread(load)


def check_name(name: str) -> None:
    """InvalidRequest for a name that clients could not use."""
    if NAME.fullmatch(name) is None or name == "latest":
        raise InvalidRequest(
            f"{name[:200]!r} is no name for an adapter: letters, digits, '.', '_' and '-', at most 128, and"
            " not 'latest'",
            param="lora_name",
        )
