"""Guards that ask a model, and guards of one call in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from head_models import head_model
from headrace import LLM, AsyncLLM
from headrace.errors import InvalidRequest, UsageError
from headrace.inference.keywords import chat_request, new_call
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.guards import input as guard_input
from headrace.tasks.guards.check import GuardChecks
from headrace.tasks.guards.settings import GuardSettings, read_guards
from tiny import tiny_model

TOPICS = {
    "sea": ["the sea", "a wave", "deep water", "the tide"],
    "cats": ["a cat", "two cats", "my cat purrs", "a kitten"],
}
EVERYTHING = {"kind": "regex", "patterns": ["(?s)."], "on": ["output"]}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    guards = {"named": EVERYTHING | {"always": False}}
    with LLM(tiny_model(tmp_path_factory.mktemp("decoder")), cache_dir=None, guards=guards) as llm:
        yield llm


def guard(**table: object) -> dict[str, GuardSettings]:
    return read_guards({"g": table})


def verdicts(runner: ModelRunner, guards: dict[str, GuardSettings], *texts: str) -> list[list[str]]:
    checks = GuardChecks(runner)

    async def check() -> list[list[str]]:
        found = [await checks.check(guards, text, "input", new_call()) for text in texts]
        return [[one.label for one in several] for _, several in found]

    return asyncio.run(check())


def test_a_classifier_finds_its_labels(tmp_path: Path) -> None:
    with LLM(head_model(tmp_path, "heads/bert_classify"), cache_dir=None) as llm:
        text = "hello you"
        [found] = llm.classify(text)
        other = next(label for label in found.labels if label != found.label)
        for label, threshold, wanted in (
            (found.label, found.score - 0.01, [found.label]),
            (found.label, min(1.0, found.score + 0.01), []),
            (other, found.scores[found.labels.index(other)] - 0.01, [other]),
        ):
            guards = guard(kind="classifier", labels=[label], threshold=max(0.0, threshold))
            assert verdicts(llm.runner, guards, text) == [wanted]
        call = new_call()
        checks = GuardChecks(llm.runner)
        asyncio.run(checks.check(guard(kind="classifier", labels=["NONE"]), text, "input", call))
        assert "none of the labels NONE is one of the model's" in call.warnings[0].message


def test_topics_by_examples() -> None:
    with LLM("embed", cache_dir=None) as llm:
        for table in ({"denied": ["sea"]}, {"allowed": ["cats"]}):
            guards = guard(kind="topics", topics=TOPICS, **table)
            assert verdicts(llm.runner, guards, "waves on the sea", "my cat is a kitten") == [["sea"], []]


def test_topics_by_their_names() -> None:
    with LLM("embed", cache_dir=None) as llm:
        guards = guard(kind="topics", topics={"the sea": [], "cats": []}, denied=["the sea"], threshold=0.0)
        assert verdicts(llm.runner, guards, "waves on the sea") == [["the sea"]]


def test_guards_of_one_call(decoder: LLM) -> None:
    plain = decoder.generate("ab", max_tokens=40, seed=1, ignore_eos=True)
    assert plain.guards == () and plain.finish_reason == "length" and plain.text
    for named in ("named", ["named"], {"own": EVERYTHING}, {"own": EVERYTHING | {"always": False}}):
        found = decoder.generate("ab", max_tokens=40, seed=1, ignore_eos=True, guard=named)
        assert (found.text, found.finish_reason) == ("", "content_filter")
        assert [one.action for one in found.guards] == ["block"]
        assert "blocked the output" in found.warnings[0].message
    with pytest.raises(InvalidRequest, match="unknown guard 'other': configured are named"):
        decoder.generate("ab", guard="other")
    with pytest.raises(InvalidRequest, match="neither a name nor a list"):
        decoder.generate("ab", guard=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no patterns"):
        decoder.generate("ab", guard={"own": {"kind": "regex"}})


def test_a_guard_of_one_call_with_asyncio(tmp_path: Path) -> None:
    async def main() -> Any:
        async with AsyncLLM(tiny_model(tmp_path), cache_dir=None) as llm:
            return await llm.generate("ab", max_tokens=5, guard={"own": EVERYTHING})

    assert asyncio.run(main()).finish_reason == "content_filter"


def test_a_blocked_answer_is_computed_no_further() -> None:
    with LLM("mini", cache_dir=None) as llm:
        most = llm.model.context_length - 50
        found = llm.generate("Once upon a time", max_tokens=most, ignore_eos=True, guard={"own": EVERYTHING})
        assert (found.text, found.finish_reason) == ("", "content_filter")
        assert 0 < found.usage.completion_tokens < most  # the first sentence has some 15


def test_what_guards_ask_models_of_one_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_input, "MAX_JUDGED_TEXTS", 5)
    topics = guard(kind="topics", topics=TOPICS, denied=["sea"])
    with LLM("embed", cache_dir=None) as llm:

        def read(count: int, guards: dict[str, GuardSettings]) -> None:
            messages = [{"role": "user", "content": "a kitten"} for _ in range(count)]
            checked = guard_input.CheckedInput(GuardChecks(llm.runner), guards, new_call())
            asyncio.run(checked.read(chat_request([{"role": "system", "content": "s"}, *messages], {})))

        read(5, topics)
        with pytest.raises(InvalidRequest, match=r"6 texts are more than the 5 that guards \(g\)") as caught:
            read(6, topics)
        assert caught.value.param == "messages"
        with pytest.raises(InvalidRequest, match=r"3 texts are more than the 2 that guards \(g, h\) read"):
            read(3, topics | {"h": topics["g"]})
        read(6, guard(kind="regex", patterns=["nothing"]))
