"""The encoder's loop: the vectors of texts, whatever else is asked for, and how requests end."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from golden import relative_error
from headrace import LLM
from headrace.engine.client import LoadedModel
from headrace.engine.request import (
    ChoiceFinished,
    Embedding,
    EmbedParams,
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
)
from headrace.errors import ContextLengthExceeded, DeadlineExceeded, EngineStopped, InvalidRequest, UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.ops.value import Array
from headrace.workers.model_spec import ModelSpec
from headrace.workers.worker_loader import WorkerLoader
from tiny import tiny_model

CONTEXT = 64  # of the tiny BERT
RANDOM = np.random.default_rng(3)
TEXTS = [tuple(RANDOM.integers(2, 128, n).tolist()) for n in (5, 64, 1, 17, 33, 64, 2, 40, 16, 9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("encoder"), "encoders/bert")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LoadedModel]:
    loaded = load_model(str(folder), EngineOptions(threads=2, max_num_seqs=4, max_batch_tokens=70))
    yield loaded
    loaded.close()


def submit(model: LoadedModel, text: Sequence[int], **more: object) -> queue.SimpleQueue[list[EngineEvent]]:
    events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
    model.engine.submit(EngineRequest(prompt=tuple(text), embed=EmbedParams(), **more), events.put)  # type: ignore[arg-type]
    return events


def vector(model: LoadedModel, text: Sequence[int]) -> Array:
    return ended(submit(model, text))[0].vectors[0]


def ended(events: queue.SimpleQueue[list[EngineEvent]]) -> tuple[Embedding, ChoiceFinished, RequestFinished]:
    embedded, choice, done = events.get(timeout=60)
    assert (
        isinstance(embedded, Embedding)
        and isinstance(choice, ChoiceFinished)
        and isinstance(done, RequestFinished)
    )
    return embedded, choice, done


def test_a_text_has_the_same_bits_whatever_else_is_computed(model: LoadedModel, folder: Path) -> None:
    together = [submit(model, text) for text in TEXTS * 3]
    found = [ended(events)[0].data for events in together]
    assert found[:10] == found[10:20] == found[20:]
    alone = load_model(str(folder), EngineOptions(threads=1, max_num_seqs=1, max_batch_tokens=1))
    try:
        assert [vector(alone, text).tobytes() for text in TEXTS] == found[:10]
    finally:
        alone.close()


def test_what_an_ended_text_tells(model: LoadedModel) -> None:
    embedded, choice, done = ended(submit(model, TEXTS[3]))
    assert embedded.vectors.shape == (1, 32)
    assert np.linalg.norm(embedded.vectors[0]) == pytest.approx(1, abs=1e-6)
    assert (choice.reason, done.usage.prompt_tokens, done.usage.completion_tokens) == ("stop", 17, 0)
    assert 0 <= done.timing.queue_s <= done.timing.total_s
    status = model.engine.status()
    assert (status.running, status.waiting, status.alive) == (0, 0, True)


def test_executors_agree(folder: Path) -> None:
    found = []
    for executor in ("native", "numpy"):
        with LLM(folder, backend=executor, threads=1) as llm:
            found.append(llm.embed(list(TEXTS)))
    assert relative_error(found[0], found[1]) <= 1e-4


def test_dimensions_are_the_first_numbers(folder: Path) -> None:
    with LLM(folder, threads=1) as llm:
        whole, short = llm.embed(["abc", "d"]), llm.embed(["abc", "d"], dimensions=8)
        assert whole.dtype == np.float32 and whole.shape == (2, 32) and short.shape == (2, 8)
        expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
        assert np.allclose(short, expected, atol=1e-6)
        assert llm.embed([]).shape == (0, 32)
        assert np.array_equal(llm.embed("abc"), whole[:1])
        with pytest.raises(InvalidRequest, match=r"dimensions is 33, .* ask for 1 to 32"):
            llm.embed("abc", dimensions=33)


def test_pooling_of_the_files_and_of_the_options(tmp_path: Path, folder: Path) -> None:
    copy = tiny_model(tmp_path, "encoders/bert")
    types = ("Transformer", "Pooling")
    modules = [
        {"path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(types)
    ]
    (copy / "modules.json").write_text(json.dumps(modules))
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with LLM(folder, threads=1, pooling="none") as llm:
        states = llm.embed_tokens([TEXTS[0]])[0]
        with pytest.raises(InvalidRequest, match="embed_tokens"):
            llm.embed([TEXTS[0]])
    assert states.shape == (5, 32)
    with LLM(copy, threads=1) as llm:
        assert relative_error(llm.embed([TEXTS[0]])[0], states[0]) <= 1e-6  # as it is: no Normalize
    with LLM(folder, threads=1, pooling="last") as llm:
        assert relative_error(llm.embed([TEXTS[0]])[0], states[-1] / np.linalg.norm(states[-1])) <= 1e-5


def test_a_decoder_with_pooling_encodes(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "qwen3")
    with LLM(folder, threads=1, pooling="last", max_model_len=32) as llm:
        assert llm.embed("abc").shape == (1, 32)
    with (
        LLM(folder, threads=1) as llm,
        pytest.raises(InvalidRequest, match="generates text and makes no embeddings"),
    ):
        llm.embed("abc")


def test_refused_at_the_door(model: LoadedModel) -> None:
    with pytest.raises(
        ContextLengthExceeded, match="the text has 65 tokens, the limit is 64: shorten it or send truncate"
    ):
        submit(model, range(2, 67))
    with pytest.raises(InvalidRequest, match="no tokens"):
        submit(model, ())
    with pytest.raises(InvalidRequest, match="token 128 is not in the vocabulary of 128"):
        submit(model, (128,))
    with pytest.raises(InvalidRequest, match="generates none"):
        model.engine.submit(EngineRequest(prompt=(5,)), lambda events: None)


def test_less_memory_for_keys_than_a_step_needs(folder: Path) -> None:
    with pytest.raises(UsageError, match="kv_cache_memory"):
        load_model(str(folder), EngineOptions(kv_cache_memory=64))


class Held:
    """Holds the encoder's thread in a sink, so that what is submitted meanwhile waits."""

    def __init__(self, model: LoadedModel) -> None:
        self._inside: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._go_on: queue.SimpleQueue[None] = queue.SimpleQueue()
        model.engine.submit(EngineRequest(prompt=TEXTS[0], embed=EmbedParams()), self._pause)
        self._inside.get(timeout=60)

    def _pause(self, events: list[EngineEvent]) -> None:
        self._inside.put(None)
        self._go_on.get(timeout=60)

    def release(self) -> None:
        self._go_on.put(None)


def test_order_cancelling_and_deadlines(model: LoadedModel) -> None:
    paused, order = Held(model), []
    events: dict[str, queue.SimpleQueue[list[EngineEvent]]] = {name: queue.SimpleQueue() for name in "abcd"}

    def sink(name: str):
        def take(batch: list[EngineEvent]) -> None:
            order.append(name)
            events[name].put(batch)

        return take

    full = TEXTS[1]  # a step has no room for two
    for name, more in (("a", {}), ("b", {"priority": -5}), ("c", {}), ("d", {"deadline_s": 1e-9})):
        ticket = model.engine.submit(
            EngineRequest(prompt=full, embed=EmbedParams(), request_id=name, **more), sink(name)
        )
        if name == "c":
            ticket.cancel()
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        submit(model, full, request_id="a")
    assert model.engine.status().waiting == 4
    paused.release()
    [choice, done] = events["c"].get(timeout=60)
    assert (
        isinstance(choice, ChoiceFinished)
        and choice.reason == "cancelled"
        and isinstance(done, RequestFinished)
    )
    [failed] = events["d"].get(timeout=60)
    assert isinstance(failed, RequestFailed) and isinstance(failed.error, DeadlineExceeded)
    ended(events["a"])
    assert order == ["c", "d", "b", "a"]


def test_closing_ends_what_waits(folder: Path) -> None:
    model = load_model(str(folder), EngineOptions(threads=1))
    paused = Held(model)
    events = submit(model, TEXTS[1])
    model.engine._queue.close()  # type: ignore[attr-defined]  # the engine's own waits for the thread
    paused.release()
    model.close()
    [failed] = events.get(timeout=60)
    assert isinstance(failed, RequestFailed) and isinstance(failed.error, EngineStopped)
    with pytest.raises(EngineStopped):
        submit(model, TEXTS[1])


def test_a_broken_step_fails_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.executors.native.NativeExecutor.run", lambda self, step: 1 / 0)
    model = load_model(str(folder), EngineOptions(threads=1))
    [failed] = submit(model, TEXTS[0]).get(timeout=60)
    assert isinstance(failed, RequestFailed) and "ZeroDivisionError" in failed.error.message
    model.close()


def test_in_a_worker_the_bits_are_the_same(model: LoadedModel, folder: Path) -> None:
    options = EngineOptions(threads=1, max_num_seqs=4)
    launch = WorkerLoader(ModelSpec(name="tiny", model=str(folder), options=options))
    launch.plan(None)
    remote = launch.load(lambda done, total: None)
    try:
        assert remote.engine.limits.embedding_size == 32
        assert np.array_equal(vector(remote, TEXTS[1]), vector(model, TEXTS[1]))
        with pytest.raises(ContextLengthExceeded):
            submit(remote, range(2, 67))
        with pytest.raises(InvalidRequest, match="generates none"):
            remote.engine.submit(EngineRequest(prompt=(5,)), lambda events: None)
    finally:
        remote.close()
