"""Runs `headrace replay`: an application of its own in this process, without a socket and a store."""

from __future__ import annotations

import asyncio
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from headrace import __version__, _native
from headrace.api.app import create_app
from headrace.api.http.replaying import Replayed, replay, with_model
from headrace.cli.fetching import fetch
from headrace.cli.serve_settings import policy_of
from headrace.cli.terminal import note, print_json
from headrace.config.cache_settings import AGE
from headrace.config.journal_settings import read_journal
from headrace.config.settings import SETTINGS, Settings
from headrace.errors import UsageError
from headrace.journal.comparison import difference, error_of, text_of
from headrace.journal.frames import read_cipher, tag_of
from headrace.journal.reader import LogReader, RecordKind
from headrace.journal.records import EndedReply, OpenedRequest, ServerFacts, shared_id
from headrace.loading.free_memory import free_memory_bytes
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec, spec_of
from headrace.workers.worker_loader import WorkerLoader

SLOWER, NOTICED_S = 1.25, 0.1
"""Times the recorded seconds, and seconds more, from which a replay counts as slower."""
DEFAULTS = Settings()
NOT_FOR_REPLAY = (
    *(
        "journal",
        "store",
        "log_requests",
        "ledger",
        "budgets",
        "providers",
        "mcp",
        "adapt",
        "cluster",
        "cache",
    ),
)
"""Settings with which a request that is made again would be written down, paid for, or do something."""
OF_A_PROVIDER = (
    "a provider has computed it: what it would say now is not known, and it is not asked and paid again"
)
COLUMN = 54  # characters of an answer that stands beside another one
OUTCOMES = ("same", "different", "failed", "skipped")
Kept = tuple[OpenedRequest, EndedReply]


def run(
    request_id: str | None, since: str, variant: str | None, settings: Settings, *, explain: bool, json: bool
) -> int:
    """Replay, print, and give the exit code."""
    found = read_journal(settings.journal)
    if found is None:
        raise UsageError("which journal? Give --journal FOLDER, or [journal] in headrace.toml")
    if not found.folder.is_dir():
        raise UsageError(f"there is no journal {found.folder}")
    log = LogReader(found.folder, read_cipher(found.key_file))
    facts = _facts(log)
    kept = _one(log, request_id) if request_id is not None else list(_since(log, since))
    name = None
    settings = replace(settings, **{name: getattr(DEFAULTS, name) for name in NOT_FOR_REPLAY})
    if variant is not None:
        settings, name = _varied(variant, settings)
    results = asyncio.run(_replayed(kept, facts, settings, name))
    if request_id is None:
        return _report_all(results, variant, json=json)
    return _report(results[0], variant, explain=explain, json=json)


def _facts(log: LogReader) -> list[ServerFacts]:
    """Of the servers that have written the journal, the latest last."""
    records = log.read([0], RecordKind.SERVER)[0]
    return [msgspec.msgpack.decode(one.payload, type=ServerFacts) for one in records]


def _facts_of(ended: EndedReply, facts: Sequence[ServerFacts]) -> ServerFacts | None:
    """Of the server that has ended a request."""
    before = [one for one in facts if one.started_unix_s <= ended.ended_unix_s]
    return next(reversed(before or facts), None)


def _kept(log: LogReader, numbers: Sequence[int]) -> Iterator[Kept]:
    for records in log.read(numbers, RecordKind.OPENED, RecordKind.ENDED).values():
        by_kind = {one.kind: one.payload for one in records}
        if len(by_kind) == 2:
            ended = msgspec.msgpack.decode(by_kind[RecordKind.ENDED], type=EndedReply)
            if by_kind[RecordKind.OPENED]:
                yield msgspec.msgpack.decode(by_kind[RecordKind.OPENED], type=OpenedRequest), ended


def _one(log: LogReader, request_id: str) -> list[Kept]:
    found = list(_kept(log, log.find(tag_of(shared_id(request_id)))))
    if not found:
        raise UsageError(f"no request {request_id!r} that has ended is in the journal {str(log.folder)!r}")
    if found[-1][1].parts is None:
        raise UsageError(f"the reply to {request_id!r} was too long to be kept: there is nothing to compare")
    return found[-1:]


def _since(log: LogReader, since: str) -> Iterator[Kept]:
    try:
        oldest_s = time.time() - float(str(AGE.parse(since)))
    except ValueError as error:
        raise UsageError(f"--since: expected {error}") from None
    for opened, ended in _kept(log, log.ended()):
        if (
            opened.arrived_unix_s >= oldest_s
            and ended.status == 200
            and ended.parts is not None
            and opened.path
        ):
            yield opened, ended


def _varied(variant: str, settings: Settings) -> tuple[Settings, str | None]:
    key, _, value = variant.partition("=")
    if key == "weights" and value:
        return replace(settings, quantization=SETTINGS["quantization"].parse(value, "--with weights")), None
    if key == "model" and value:
        return settings, value
    raise UsageError(f"--with {variant!r}: give weights=TYPE, such as weights=int8, or model=NAME")


async def _replayed(
    kept: Sequence[Kept], facts: Sequence[ServerFacts], settings: Settings, name: str | None
) -> list[dict[str, Any]]:
    def launch(spec: ModelSpec) -> WorkerLoader:
        fetch(spec.model, settings)
        return WorkerLoader(spec)

    served = {own: model for one in facts for own, model in one.models.items()}
    specs = [replace(spec_of(model, settings), name=own) for own, model in served.items()]
    if name is not None and name not in served:
        specs.append(spec_of(name, settings))
    if not specs:
        raise UsageError("the journal does not say which models its server had")
    models = ModelManager(specs, launch, policy_of(settings, free_memory_bytes()))
    app = create_app(models, settings)
    service = app.state.service
    service.gate.starting = False
    found: list[dict[str, Any]] = []
    try:
        for place, (opened, ended) in enumerate(kept, 1):
            if len(kept) > 1:
                note(f"{place} of {len(kept)}: {opened.request_id}")
            if name is None and _is_remote(ended, served):
                found.append(_skipped(opened, ended, settings.node_usd_per_hour))
                continue
            asked = opened if name is None else with_model(opened, name)
            done = await replay(app, asked, service.keys.everybody)
            of_it = _facts_of(ended, facts)
            found.append(_compared(opened, ended, done, of_it, settings.node_usd_per_hour))
    finally:
        service.local.close()
        await models.close()
        service.close()
    return found


def _is_remote(ended: EndedReply, served: Mapping[str, str]) -> bool:
    """Whether none of the server's own models has computed it."""
    return not ended.fingerprint and bool(ended.model) and ended.model not in served


def _skipped(opened: OpenedRequest, ended: EndedReply, usd_per_hour: float) -> dict[str, Any]:
    return {
        "id": opened.request_id,
        "endpoint": opened.path,
        "outcome": "skipped",
        "difference": None,
        "reasons": [OF_A_PROVIDER],
        "recorded": _recorded(ended, usd_per_hour),
        "replayed": None,
    }


def _compared(
    opened: OpenedRequest, ended: EndedReply, done: Replayed, facts: ServerFacts | None, usd_per_hour: float
) -> dict[str, Any]:
    outcome, parted = "failed", None
    if done.status == ended.status:
        parted = difference(ended.parts or (), done.parts)
        outcome = "same" if parted is None else "different"
    return {
        "id": opened.request_id,
        "endpoint": opened.path,
        "outcome": outcome,
        "difference": None if parted is None else asdict(parted),
        "reasons": _reasons(ended, done, facts) if outcome != "same" else [],
        "recorded": _recorded(ended, usd_per_hour),
        "replayed": {
            "model": done.model,
            "fingerprint": done.fingerprint,
            "status": done.status,
            "seconds": round(done.seconds, 3),
            "usd": _usd(done.seconds, usd_per_hour),
            "output_tokens": done.output_tokens,
            "text": text_of(done.parts),
        },
    }


def _recorded(ended: EndedReply, usd_per_hour: float) -> dict[str, Any]:
    return {
        "model": ended.model,
        "fingerprint": ended.fingerprint,
        "status": ended.status,
        "seconds": round(ended.total_s, 3),
        "usd": _usd(ended.total_s, usd_per_hour),
        "output_tokens": ended.completion_tokens,
        "text": text_of(ended.parts or ()),
    }


def _reasons(ended: EndedReply, done: Replayed, facts: ServerFacts | None) -> list[str]:
    """What may have made the difference."""
    found: list[str] = []
    if done.status != ended.status:
        found.append(f"the reply has status {done.status}, it had {ended.status}")
        if done.status >= 400:
            found.append(error_of(done.parts))
    if facts is not None and facts.version != __version__:
        found.append(f"Headrace is {__version__}, the server was {facts.version}")
    if facts is not None and facts.isa != _native.isa():
        found.append(f"this machine computes with {_native.isa()}, the server with {facts.isa}")
    if not done.fingerprint:
        return found or ["nothing was computed"]
    if done.model != ended.model:
        found.append(f"the model is {done.model}, it was {ended.model}")
    elif done.fingerprint != ended.fingerprint:
        found.append(f"the weights are others ({done.fingerprint}, they were {ended.fingerprint})")
    return found or ["nothing that is known: the same version, instruction set and weights"]


def _usd(seconds: float, usd_per_hour: float) -> float | None:
    """What the machine costs for that time, alone."""
    return round(seconds * usd_per_hour / 3600, 9) if usd_per_hour else None


def _report(result: dict[str, Any], variant: str | None, *, explain: bool, json: bool) -> int:
    code = (
        0 if result["outcome"] == "same" or (variant is not None and result["outcome"] == "different") else 1
    )
    if json:
        print_json(result)
        return code
    if variant is not None and result["replayed"] is not None:
        _show_both(result)
    print("same bytes" if result["outcome"] == "same" else result["outcome"])
    parted = result["difference"]
    if parted is not None and variant is None:
        print(f"they part at byte {parted['byte']:,} of {parted['where']}")
        if explain:
            print(f"recorded: {parted['recorded']!r}\nreplayed: {parted['replayed']!r}")
    if explain or result["outcome"] in ("failed", "skipped"):
        for reason in result["reasons"]:
            print(f"because: {reason}")
    return code


def _show_both(result: dict[str, Any]) -> None:
    """Two answers side by side, each with what it took."""
    columns: list[list[str]] = []
    for name in ("recorded", "replayed"):
        side = result[name]
        took = f"{side['output_tokens']:,} tokens in {side['seconds']:.2f} s"
        cost = "" if side["usd"] is None else f", ${side['usd']:.6f}"
        lines = [line for text in side["text"].split("\n") for line in textwrap.wrap(text, COLUMN) or [""]]
        columns.append([f"{name}: {side['model']}", f"{took}{cost}", "-" * COLUMN, *lines])
    for left, right in zip_longest(*columns, fillvalue=""):
        print(f"{left:{COLUMN}}  {right}".rstrip())


def _report_all(results: Sequence[dict[str, Any]], variant: str | None, *, json: bool) -> int:
    count = {name: sum(one["outcome"] == name for one in results) for name in OUTCOMES}
    slower = [one for one in results if _is_slower(one)]
    if json:
        counts = {"equal": count["same"], **{name: count[name] for name in OUTCOMES[1:]}}
        print_json({**counts, "slower": len(slower), "requests": list(results)})
    else:
        for one in results:
            if one["outcome"] != "same":
                print(f"{one['outcome']}: {one['id']}: {'; '.join(one['reasons'])}")
        for one in slower:
            then_s, now_s = one["recorded"]["seconds"], one["replayed"]["seconds"]
            print(f"slower: {one['id']}: {now_s:.2f} s, it took {then_s:.2f} s")
        print(
            f"{count['same']:,} equal, {count['different']:,} different, {count['failed']:,} failed, "
            f"{count['skipped']:,} skipped, {len(slower):,} slower"
        )
    return 1 if count["failed"] or (count["different"] and variant is None) else 0


def _is_slower(result: dict[str, Any]) -> bool:
    """Whether it was computed, and took longer than can be chance."""
    if result["outcome"] not in ("same", "different"):
        return False
    then_s, now_s = result["recorded"]["seconds"], result["replayed"]["seconds"]
    return now_s > max(SLOWER * then_s, then_s + NOTICED_S)
