"""The stacked bill: its workload, and the command with models that run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.chat.messages import Message
from headrace.economy.savings.engine_run import StackRun
from headrace.economy.savings.outcomes import distinct, is_right, repeated, unseen
from headrace.economy.savings.playing import PlayedRequest, busy_seconds
from headrace.economy.savings.traffic import (
    LABEL,
    SQL,
    RecordedRequest,
    made_traffic,
    read_traffic,
    write_traffic,
)
from headrace.errors import UsageError
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity, is_candidate, is_deterministic, key_of
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest
from headrace.sampling.params import SamplingParams
from headrace.storage.cached_answers import StoredAnswer, open_cache
from headrace.storage.keys import KeyLimits


def test_the_generator_makes_the_same_traffic_each_time(tmp_path: Path) -> None:
    made = made_traffic(200, 2.0, 30)
    assert made == made_traffic(200, 2.0, 30)
    assert made != made_traffic(200, 2.0, 30, seed=1)
    traffic = [one for one in made if not one.history]
    assert [one.kind for one in made if one.history] == [SQL] * 30 + [LABEL] * 30
    assert len(traffic) == 200
    assert traffic[-1].at_s == pytest.approx(100, rel=0.3)
    assert 0.15 < 1 - len({one.prompt for one in traffic}) / 200 < 0.6
    write_traffic(made, tmp_path / "traffic.jsonl")
    assert read_traffic(tmp_path / "traffic.jsonl") == made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no traffic"),
        ('{"at_s": 0, "kind": "sql", "prompt": "a", "other": 1}', "line 1: .*other"),
        ('{"at_s": 0, "kind": "sql", "prompt": "a", "history": true}', "has no traffic"),
        ('{"at_s": 1, "kind": "a", "prompt": "a"}\n{"at_s": 0, "kind": "a", "prompt": "a"}', "must .*ascend"),
    ],
)
def test_a_file_without_traffic_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "traffic.jsonl").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_traffic(tmp_path / "traffic.jsonl")


def test_answers_are_compared_without_case_and_quotes_of_names() -> None:
    asked = RecordedRequest(at_s=0, kind=SQL, prompt="", answer="SELECT \"a\" FROM t WHERE b = 'X'")
    assert is_right(asked, "select a  from t where b = 'x'")
    assert not is_right(asked, "SELECT b FROM t WHERE b = 'X'")


def test_busy_time_counts_no_moment_twice() -> None:
    spans = [(0.0, 1.0), (0.5, 0.7), (0.9, 2.0), (3.0, 3.5)]
    assert busy_seconds([PlayedRequest(begun_s=a, done_s=b) for a, b in spans]) == pytest.approx(2.5)
    assert StackRun(added="", measured_nano=200, simulated_nano=190).error == pytest.approx(-0.05)


def test_the_exact_cache_of_the_bill_is_the_one_of_the_gateway(tmp_path: Path) -> None:
    """The traffic asked of a real response cache: hits are where the bill has them."""
    traffic = [one for one in made_traffic(150, 2.0, 0) if not one.history]
    cache = ResponseCache(open_cache(tmp_path / "cache.db"), limit_bytes=1 << 24, ttl_s=3600)
    call = CallContext(request_id="r", account=Account("", KeyLimits()))
    hits: list[bool] = []
    for one in traffic:
        identity = ModelIdentity(
            name="large", digest=b"1", params=SamplingParams(temperature=0.8 if one.sampled else 0)
        )
        messages = (Message("system", one.instruction), Message("user", one.prompt))
        asked = ChatRequest(id="r", model="large", messages=messages)
        key = key_of(asked, identity, b"tenant")
        exact = is_candidate(asked, call) and is_deterministic(asked, identity)
        hits.append(exact and cache.find(key) is not None)
        if exact:
            now_s = cache.clock.now_s()
            cache.add(
                StoredAnswer(
                    key=key,
                    tenant=b"tenant",
                    model="large",
                    identity=b"1",
                    created_s=now_s,
                    used_s=now_s,
                    tokens=1,
                    nano_usd=None,
                    size_bytes=0,
                ),
                b"answer",
            )
    cache.close()
    assert hits == repeated(traffic)
    assert sum(hits) > 10


def test_a_label_certifies_once() -> None:
    """Repeats say the same again: they are neither further evidence nor further errors."""
    one, other, third = (RecordedRequest(at_s=0.0, kind="sql", prompt=text) for text in "abc")
    assert distinct([one, other, one, one]) == [one, other]
    assert unseen([one], [one, other, third, other]) == (False, True, True, False)
