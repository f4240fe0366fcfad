"""Endpoints probed one after the other, once or again and again; what is measured is kept at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from headrace.providers.probe.endpoints import Endpoint, Price
from headrace.providers.probe.run import Probe, ProbeOutcome, Progress, Sample
from headrace.providers.probe.session import Session
from headrace.providers.probe.summary import EndpointFacts, kind_of
from headrace.storage.probes import ProbeRow, Probes


class Probed(Struct, frozen=True):
    """An endpoint with all that a probe of it needs; see `Session`."""

    endpoint: Endpoint
    price: Price
    key: Callable[[], str | None]
    count: Callable[[str], int] | None = None


async def probe_all(
    probed: Sequence[Probed],
    probes: Probes,
    progress: Progress,
    *,
    every_s: float | None = None,
    after_each: Callable[[Endpoint, ProbeOutcome], None] = lambda endpoint, outcome: None,
) -> None:
    """Probe all, one after the other so that they do not slow each other down; with `every_s` again so many
    seconds after each beginning, without an end."""
    while True:
        start_s = time.monotonic()
        for one in probed:
            after_each(one.endpoint, await _probe(one, probes, progress))
        if every_s is None:
            return
        await asyncio.sleep(max(0.0, start_s + every_s - time.monotonic()))


async def _probe(one: Probed, probes: Probes, progress: Progress) -> ProbeOutcome:
    endpoint, price = one.endpoint, one.price

    def put(kind: str, body: bytes) -> None:
        probes.add(ProbeRow(time.time(), endpoint.name, kind, body))

    async def keep(sample: Sample) -> None:
        await asyncio.to_thread(put, kind_of(sample), msgspec.json.encode(sample))

    facts = EndpointFacts(
        model=endpoint.target.model,
        provider=endpoint.target.provider.name,
        input=price.input,
        output=price.output,
    )
    put("endpoint", msgspec.json.encode(facts))
    probes.trim(time.time())
    session = Session(endpoint, price, one.key, one.count)
    try:
        return await Probe(session, keep, progress).run()
    finally:
        await session.close()
