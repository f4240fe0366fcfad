"""What one request to a task may ask for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from head_models import head_model
from headrace import LLM
from headrace.errors import InvalidRequest
from headrace.inference.keywords import new_call
from headrace.tasks import few_shot, zero_shot
from headrace.tasks.task_limits import MAX_LABEL_LENGTH, check_labels


def test_a_label_has_a_longest_length() -> None:
    check_labels(["a" * MAX_LABEL_LENGTH])
    with pytest.raises(InvalidRequest, match="one of 1,001 characters, a label has at most 1,000"):
        check_labels(["b", "a" * (MAX_LABEL_LENGTH + 1)])


def test_pairs_that_a_model_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_shot, "MAX_JUDGED_PAIRS", 5)
    told = pytest.raises(InvalidRequest, match=r"2 texts times 3 labels are 6 pairs, .* at most 5 at once")
    with LLM(head_model(tmp_path, "heads/bert_classify"), cache_dir=None) as judge, told:
        judge.zero_shot(["a", "b"], ["c", "d", "e"])
    with LLM("embed", cache_dir=None) as embedder:  # compares vectors, which is cheap
        assert len(embedder.zero_shot(["a", "b"], ["c", "d", "e"])) == 2


def test_fits_of_requests_have_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()
    fit = few_shot.fit

    def noted(*args: object, **kwargs: object) -> few_shot.LogisticRegression:
        names.append(threading.current_thread().name)
        return fit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(few_shot, "fit", noted)
    examples = [("my card is lost", "cards"), ("what is a euro worth", "rates")]
    with LLM("embed", cache_dir=None) as llm:

        async def several() -> None:
            asked = [
                few_shot.classify_by_examples(llm.runner, None, ["a card"], examples, new_call())
                for _ in range(3)
            ]
            await asyncio.gather(*asked)

        asyncio.run(several())
    assert names == ["headrace-fit_0"] * 3


def test_embed_cuts_where_it_is_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    with LLM("embed", cache_dir=None) as llm:
        long = "the sea " * llm.model.context_length
        assert llm.embed(long, truncate=True).shape[0] == 1
        assert "was cut to the model's" in caplog.text
