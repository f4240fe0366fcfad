"""`headrace cache`: what the response cache keeps, and what it has saved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from msgspec import to_builtins

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, print_table
from headrace.config.cache_settings import AGE
from headrace.config.settings import Settings
from headrace.economy.money import shown_usd
from headrace.errors import UsageError
from headrace.gateway.answer_record import text_of, unpacked
from headrace.gateway.typed_values import NotEncodable
from headrace.storage.cached_answers import CachedAnswers, StoredAnswer, cache_file, open_cache

HELP = """Show or empty the response cache of `headrace serve` (the table [cache] of headrace.toml).

stats: answers that are kept, and what hits have saved. show ID: one answer; the first characters of its id
are enough. purge: forget answers: those of --model, those --older than 12h or 7d, or with neither all. A
running server notices at the next request.

\b
Examples:
  headrace cache stats
  headrace cache show 3f9a
  headrace cache purge --model mini --older 7d
"""
ID_CHARACTERS = 12


class CacheAction(StrEnum):
    """Subcommands."""

    STATS = "stats"
    SHOW = "show"
    PURGE = "purge"


@takes_settings("store")
def command(
    action: Annotated[CacheAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    id: Annotated[str | None, typer.Argument(metavar="ID", help="Id of an answer, for show.")] = None,
    model: Annotated[str | None, typer.Option(help="With purge: answers of this model.")] = None,
    older: Annotated[str | None, typer.Option(help="With purge: answers older than 12h, 7d, …")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    if (id is not None) != (action is CacheAction.SHOW):
        raise UsageError(f"cache {action.value} takes {'an' if id is None else 'no'} ID")
    if (model or older) and action is not CacheAction.PURGE:
        raise UsageError("--model and --older are for cache purge")
    database = open_cache(cache_file(settings.store_file))
    try:
        answers = CachedAnswers(database)
        found = answers.all() if database.exists else []
        if action is CacheAction.SHOW:
            _show(answers, found, id or "", json)
        elif action is CacheAction.PURGE:
            _purge(answers, found, model, older, json)
        else:
            _stats(answers if database.exists else None, found, json)
    finally:
        database.close()


def _stats(answers: CachedAnswers | None, found: Sequence[StoredAnswer], json: bool) -> None:
    savings = [] if answers is None else answers.savings()
    total = sum(one.size_bytes for one in found)
    if json:
        print_json({"answers": len(found), "bytes": total, "savings": to_builtins(savings)})
        return
    print(f"{len(found):,} answers, {total / 2**20:,.1f} MiB")
    rows = [
        (one.model, one.kind, f"{one.hits:,}", f"{one.tokens:,}", shown_usd(one.nano_usd)) for one in savings
    ]
    if rows:
        print_table(rows, header=("MODEL", "KIND", "HITS", "TOKENS SAVED", "SAVED"))
    latest = sorted(found, key=lambda one: -one.used_s)[:10]
    rows = [(one.key.hex()[:ID_CHARACTERS], one.model, f"{one.hits:,}", f"{one.tokens:,}") for one in latest]
    if rows:
        print_table(rows, header=("LATEST", "MODEL", "HITS", "TOKENS"))


def _show(answers: CachedAnswers, found: Sequence[StoredAnswer], id: str, json: bool) -> None:
    matching = [one for one in found if one.key.hex().startswith(id.lower())]
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching)} answers have an id that begins with {id!r}: see `headrace cache stats`"
        )
    [answer] = matching
    stored = answers.body(answer.key)
    try:
        record = None if stored is None else unpacked(stored[1], stored[0])
    except NotEncodable as error:
        raise UsageError(f"{error.message}: empty the cache with `headrace cache purge`") from None
    text = None if record is None else text_of(record.batches)
    shown = {
        "id": answer.key.hex(),
        "model": answer.model,
        "age_s": round(max(0.0, time.time() - answer.created_s)),
        "hits": answer.hits,
        "tokens": answer.tokens,
        "question": "" if record is None else record.question,
        "text": text,
    }
    print_json(shown) if json else print("\n".join(f"{name}: {value}" for name, value in shown.items()))


def _purge(
    answers: CachedAnswers, found: Sequence[StoredAnswer], model: str | None, older: str | None, json: bool
) -> None:
    try:
        least_s = 0.0 if older is None else float(str(AGE.parse(older)))
    except ValueError as error:
        raise UsageError(f"--older is {older!r}, it must be {error}") from None
    now_s = max(time.time(), answers.last_s()) if found else 0.0
    gone = [
        one for one in found if model in (None, one.model) and (not older or now_s - one.created_s > least_s)
    ]
    if gone:
        answers.remove([one.key for one in gone])
        answers.database.erase_deleted()
    print_json({"purged": len(gone)}) if json else print(f"purged {len(gone):,} of {len(found):,} answers")
