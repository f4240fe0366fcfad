"""`headrace bench endpoints`: of a provider that keeps its word, and of one that does not."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_provider import Exchange, delta, events, fail, running_provider, usage

from headrace.errors import UsageError
from headrace.providers.probe.endpoints import Price, read_endpoints
from headrace.providers.probe.prompts import new_prompt
from headrace.providers.probe.suite import suite
from headrace.providers.probe.summary import EndpointSummary, summaries
from headrace.providers.probe.watch import Probed, probe_all
from headrace.storage.database import Database
from headrace.storage.probes import KEPT_S, ProbeRow, Probes

WRITTEN = {
    "line 1\\s*\\n\\s*line 2\\s*\\n\\s*line 3": "line 1\nline 2\nline 3",
    "apple, fig, plum\\.?": "apple, fig, plum",
}


def right_answer(item: Any) -> str:
    if item.check == "json":
        return json.dumps(item.right)
    if item.check == "word":
        return item.right[0].title() + "."
    return WRITTEN.get(item.right, str(item.right)) if item.check == "match" else f"That is {item.right:,}."


@dataclass
class Honest:
    """Answers by the rules; the fields break them one by one."""

    reasons: bool = True
    ignores_stop: bool = False
    ignores_seed: bool = False
    ignores_max_tokens: bool = False
    reads_last: int = 10**9
    """Characters of a prompt that it reads."""
    tokens_factor: float = 1.0
    caches: bool = True
    seen: set[str] = field(default_factory=set[str])
    drifts: int = 0

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.body
        prompt: str = body["messages"][0]["content"]
        text = self.text(prompt[-self.reads_last :], body)
        if "stop" in body and not self.ignores_stop:
            text = text.split(body["stop"][0])[0]
        words = text.split(" ")
        if not self.ignores_max_tokens:
            words = words[: body.get("max_tokens", 10**9)]
        read = round(len(prompt.split()) * self.tokens_factor)
        cached = read // 2 if self.caches and prompt in self.seen else 0
        self.seen.add(prompt)
        await exchange.begin()
        if self.reasons:
            await exchange.send(events(delta(reasoning_content="Well."), done=False))
            await asyncio.sleep(0.02)
        logprobs = (
            {"content": [{"token": "a", "logprob": -0.5, "bytes": None}]} if body.get("logprobs") else None
        )
        for at, word in enumerate(words):
            chunk = delta(content=word if at == 0 else " " + word)
            chunk["choices"][0]["logprobs"] = logprobs
            await exchange.send(events(chunk, done=False))
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        await exchange.send(events(delta(finish="stop"), usage(read, len(words), **details)))

    def text(self, prompt: str, body: dict[str, Any]) -> str:
        for item in suite():
            if item.prompt == prompt:
                return right_answer(item)
        if "Count from 1 to 9" in prompt:
            return "1 2 3 4 5 6 7 8 9"
        if found := re.search(r"The code word is (\S+)\.", prompt):
            return f"{found[1]} once upon a time " + "there was a " * 8
        if "seed" in body and not self.ignores_seed:
            return f"The ship {body['seed']} sails."
        if "three rivers" in prompt:
            self.drifts += 1
            return "Rhine" if self.drifts < 3 else "Volga"
        return f"The ship {random.random()} sails on and on " + "and on " * 20


def probed(fake: Honest | Any, tmp_path: Path, times: int = 1, **more: Any) -> tuple[EndpointSummary, Probes]:
    database = Database(tmp_path / "store.db")
    probes = Probes(database)
    with running_provider(fake) as provider:
        given = {"prompt_tokens": [100, 400], "parallel": [1, 3], "output_tokens": 20, **more}
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
        file = tmp_path / "endpoints.toml"
        price = "price = { input = 1, output = 5, cache_read = 0.1 }"
        head = ["[endpoints.far]", f'base_url = "{provider.url}"', 'model = "far-1"', price]
        file.write_text("\n".join([*head, *lines]))
        (endpoint,) = read_endpoints(file)
        assert endpoint.price is not None
        one = Probed(endpoint, endpoint.price, lambda: None, lambda text: len(text.split()))
        for _ in range(times):
            asyncio.run(probe_all([one], probes, lambda label, done, total: None))
    (found,) = summaries(probes, time.time())
    return found, probes


def verdicts(found: EndpointSummary) -> dict[str, str]:
    return {one.name: one.verdict for one in found.checks}


def test_an_endpoint_that_keeps_its_word(tmp_path: Path) -> None:
    fake = Honest()
    found, _ = probed(fake, tmp_path, times=2)
    assert verdicts(found) == {
        **dict.fromkeys(("stop", "max_tokens", "seed", "logprobs", "cache", "drift", "head", "tokens"), "ok")
    }, found.checks
    assert found.quality == dict.fromkeys(("arithmetic", "extraction", "json", "instructions", "all"), 1.0)
    assert [(one.prompt_tokens, one.parallel, one.samples) for one in found.speed] == [
        *((100, 1, 2), (100, 3, 6), (400, 1, 2), (400, 3, 6))
    ]
    for one in found.speed:
        assert not one.errors and one.tokens_per_s
        assert one.first_s is not None and one.first_answer_s is not None
        assert one.first_answer_s > one.first_s  # the first token of the reasoning is not the answer's
        assert one.answer_s == pytest.approx(one.first_answer_s + 500 / one.tokens_per_s)
    assert (found.input, found.output, found.blended) == (1, 5, 2)
    assert 0 < found.usd < 0.5


def test_prompts_are_new_in_every_run(tmp_path: Path) -> None:
    fake = Honest()
    probed(fake, tmp_path, times=2, quality=False, honesty=False)
    assert len(fake.seen) == 2 * (1 + 3) * 2


@pytest.mark.parametrize(
    ("lie", "check", "verdict"),
    [
        ({"ignores_stop": True}, "stop", "broken"),
        ({"ignores_seed": True}, "seed", "broken"),
        ({"ignores_max_tokens": True}, "max_tokens", "broken"),
        ({"reads_last": 1200}, "head", "broken"),
        ({"tokens_factor": 1.1}, "tokens", "broken"),
        ({"caches": False}, "cache", "unknown"),
    ],
)
def test_an_endpoint_that_does_not(lie: dict[str, Any], check: str, verdict: str, tmp_path: Path) -> None:
    found, _ = probed(Honest(**lie), tmp_path, quality=False)
    assert verdicts(found)[check] == verdict, found.checks
    others = {name: one for name, one in verdicts(found).items() if name not in (check, "drift", "cache")}
    assert set(others.values()) <= {"ok"}, found.checks


def test_a_greedy_answer_that_changes(tmp_path: Path) -> None:
    found, _ = probed(Honest(), tmp_path, times=3, quality=False, prompt_tokens=[100])
    (drift,) = (one for one in found.checks if one.name == "drift")
    assert (drift.verdict, drift.detail) == ("broken", "the greedy answer changed 1 times in 3 probes")


def test_errors_are_counted_by_kind(tmp_path: Path) -> None:
    found, _ = probed(fail(429), tmp_path)
    assert {kind for one in found.speed for kind in one.errors} == {"rate_limit"}
    assert not found.quality and found.usd == 0
    assert set(verdicts(found).values()) == {"unknown"}


@pytest.mark.parametrize("budget", [0.0, 0.0005, 0.003, 0.02])
def test_no_probe_costs_more_than_its_budget(budget: float, tmp_path: Path) -> None:
    fake = Honest()
    found, _ = probed(fake, tmp_path, budget_usd=budget)
    assert found.usd <= budget
    assert bool(fake.seen) == (budget > 0)


def test_what_is_old_or_too_much_is_deleted(tmp_path: Path) -> None:
    probes = Probes(Database(tmp_path / "store.db"))
    for at_s in (0.0, 100.0, KEPT_S + 50.0, KEPT_S + 60.0):
        probes.add(ProbeRow(at_s, "a", "speed", b"{}"))
    probes.trim(KEPT_S + 70.0)
    assert [one.at_s for one in probes.since(0)] == [100.0, KEPT_S + 50.0, KEPT_S + 60.0]
    probes.trim(KEPT_S + 70.0, most=1)
    assert [one.at_s for one in probes.since(0)] == [KEPT_S + 60.0]


def test_every_item_has_an_answer_that_is_right_and_others_that_are_not() -> None:
    assert len(suite()) >= 30
    assert len({item.prompt for item in suite()}) == len(suite())
    for item in suite():
        assert item.is_right(right_answer(item)), item
        for wrong in ("", "I do not know.", "[" * 10_000, "9" * 500, "ÿ\0\n```json\n{}\n```"):
            assert not item.is_right(wrong), item


@pytest.mark.parametrize("tokens", [50, 100, 1_000, 100_000])
def test_prompts_have_about_the_length(tokens: int) -> None:
    prompt = new_prompt(random.Random(1), tokens, 300, 1.0)
    assert abs(len(prompt.text.split()) - tokens) < 30
    assert prompt.text.startswith(f"The code word is {prompt.code}.")


def test_a_price() -> None:
    price = Price(3, 15)
    assert price.blended == 6
    assert price.most_usd(1_000_000, 100_000) == 4.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no table"),
        ("x = [", "no TOML"),
        ("[endpoint.a]", "did you mean 'endpoints'"),
        ("[endpoints]\na = 1", "is no table"),
        ("[endpoints.a]\nmodell = 1", "did you mean 'model'"),
        ("[endpoints.a]\nmodel = 'm'", "base_url is missing"),
        ("[endpoints.a]\nbase_url = 'http://h/v1'", "model is missing"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nprompt_tokens = [1]", "prompt_tokens is 1"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nparallel = [0]", "parallel is 0"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nbudget_usd = -1", "budget_usd is -1"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nbudget_usd = nan", "budget_usd is nan"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nprice = 3", "price"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'openai'\nprice = {input = -1, output = 1}", "no price"),
        ("[endpoints.a]\nmodel = 'm'\nprovider = 'nobody'", "base_url is missing"),
    ],
)
def test_wrong_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_endpoints(file)


def test_a_provider_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text("[probe]\nbudget_usd = 2\n[endpoints.a]\nprovider = 'gpu'\nmodel = 'm'\nparallel = [1]\n")
    (one,) = read_endpoints(file, {"gpu": {"kind": "vllm", "base_url": "http://gpu1:8000/v1"}})
    assert one.target.provider.base_url == "http://gpu1:8000/v1" and one.target.row.continues == "vllm"
    assert (one.plan.budget_usd, one.plan.parallel) == (2, (1,))
