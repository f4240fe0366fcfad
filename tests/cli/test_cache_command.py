"""`headrace cache`: what is kept, one answer, and forgetting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome

from headrace.chat.tool_formats.events import Text
from headrace.gateway.answer_record import digest_of, packed
from headrace.inference.events import OutputDelta, Prepared, PreparedPrompt
from headrace.storage.cached_answers import CachedAnswers, Saving, StoredAnswer, cache_file, open_cache


def fill(store: Path) -> None:
    database = open_cache(cache_file(store))
    answers, now_s = CachedAnswers(database), time.time()
    for number, (model, age_s) in enumerate([("mini", 10.0), ("mini", 90_000.0), ("far", 10.0)]):
        batches = [
            [Prepared(model, (PreparedPrompt((1,), ""),))],
            [OutputDelta(0, [Text(f"answer {number}")])],
        ]
        body = packed(batches, [], "a question")
        one = StoredAnswer(
            key=bytes([number]) * 32,
            tenant=b"t",
            model=model,
            identity=b"i",
            created_s=now_s - age_s,
            used_s=now_s,
            tokens=9,
            nano_usd=None,
            size_bytes=len(body),
        )
        answers.add(one, digest_of(body), body, now_s)
    answers.used([], [Saving("far", "exact", 3, 27, 1_500_000_000)], now_s)
    database.close()


def test_stats_show_and_purge(tmp_path: Path, inside: Callable[..., Outcome]) -> None:
    store = tmp_path / "s.sqlite3"
    flags = ("--store", str(store))
    assert inside("cache", "stats", *flags).stdout.startswith("0 answers")
    assert json.loads(inside("cache", "purge", "--json", *flags).stdout) == {"purged": 0}
    fill(store)
    shown = inside("cache", "stats", *flags).stdout
    assert "3 answers" in shown and "1.5" in shown and "010101010101" in shown
    assert json.loads(inside("cache", "stats", "--json", *flags).stdout)["savings"][0]["tokens"] == 27
    one = json.loads(inside("cache", "show", "0202", "--json", *flags).stdout)
    assert (one["text"], one["question"], one["model"]) == ("answer 2", "a question", "far")
    assert inside("cache", "show", "ff", *flags).code == 2
    assert inside("cache", "show", *flags).code == 2
    assert inside("cache", "stats", "--model", "mini", *flags).code == 2
    assert inside("cache", "purge", "--older", "soon", *flags).code == 2
    assert "purged 1 of 3" in inside("cache", "purge", "--model", "mini", "--older", "1d", *flags).stdout
    assert "purged 1 of 2" in inside("cache", "purge", "--model", "mini", *flags).stdout
    assert "purged 1 of 1" in inside("cache", "purge", *flags).stdout
