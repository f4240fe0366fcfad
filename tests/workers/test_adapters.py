"""Adapters of engines, here and in a worker process: the same bytes in any company and after a death."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest, RequestFailed
from headrace.errors import HeadraceError, ModelNotFound
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.workers.engine_client import RemoteEngineClient
from headrace.workers.protocol import AdapterResult, LoadAdapter, UnloadAdapter
from headrace.workers.remote_adapters import RemoteAdapters
from peft_adapters import write_adapter
from tiny import Running, tiny_model

PROMPT = tuple(range(5, 60))


def asked(adapter: str = "", tokens: int = 24, seed: int = 3) -> EngineRequest:
    params = SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=True, logprobs=1)
    return EngineRequest(prompt=PROMPT, params=params, adapter=adapter)


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> list[Path]:
    """Three random ones."""
    place = tmp_path_factory.mktemp("adapters")
    return [write_adapter(place / f"a{i}", folder, seed=i, rank=rank) for i, rank in enumerate((4, 8, 3))]


def load(model: LoadedModel, paths: list[Path]) -> list[str]:
    return [model.engine.load_adapter(path).digest for path in paths]


def test_streams_of_several_adapters_have_the_bytes_that_each_has_alone(
    here: LoadedModel, adapters: list[Path]
) -> None:
    digests = ["", *load(here, adapters)]
    assert len(set(digests)) == 4
    alone = [Running(here.engine, asked(one)).finish().bits for one in digests]
    assert len({str(bits) for bits in alone}) == 4
    order = [0, 1, 2, 3, 3, 1, 0, 2]
    together = [Running(here.engine, asked(digests[i])) for i in order]
    for i, running in zip(order, together, strict=True):
        outcome = running.finish()
        assert outcome.bits == alone[i]


def test_speculation_gives_the_same_tokens(folder: Path, adapters: list[Path]) -> None:
    """Drafts come from the model without its adapter, or from texts; they only change how fast it is."""
    options = EngineOptions(threads=1, max_num_seqs=4, speculative="off")
    results: list[object] = []
    for chosen in (options, EngineOptions(threads=1, max_num_seqs=4, speculative_layers=1)):
        model = load_model(str(folder), chosen)
        [digest] = load(model, adapters[:1])
        running = [Running(model.engine, asked(one, 60)) for one in (digest, "", digest)]
        results.append([one.finish().tokens for one in running])
        model.close()
    assert results[0] == results[1]


def test_prefix_caches_are_separate(here: LoadedModel, adapters: list[Path]) -> None:
    first, second = load(here, adapters[:2])
    salted = [
        EngineRequest(prompt=PROMPT, params=asked().params, adapter=one, cache_salt="s")
        for one in ("", first)
    ]
    assert Running(here.engine, salted[0]).finish().done.usage.cached_tokens == 0
    assert Running(here.engine, salted[1]).finish().done.usage.cached_tokens == 0
    assert Running(here.engine, salted[1]).finish().done.usage.cached_tokens > 0
    other = EngineRequest(prompt=PROMPT, params=asked().params, adapter=second, cache_salt="s")
    assert Running(here.engine, other).finish().done.usage.cached_tokens == 0


def test_a_worker_gives_the_bits_of_a_local_engine(
    remote: LoadedModel, here: LoadedModel, adapters: list[Path]
) -> None:
    assert load(remote, adapters) == load(here, adapters)
    for digest in load(here, adapters):
        assert (
            Running(remote.engine, asked(digest)).finish().bits
            == Running(here.engine, asked(digest)).finish().bits
        )


def test_unloading_lets_requests_end(remote: LoadedModel, here: LoadedModel, adapters: list[Path]) -> None:
    for model in (here, remote):
        [digest] = load(model, adapters[:1])
        expected = Running(model.engine, asked(digest, 200)).finish().bits
        running = Running(model.engine, asked(digest, 200))
        running.next()
        model.engine.unload_adapter(digest)
        with pytest.raises(ModelNotFound):
            refused = Running(model.engine, asked(digest)).finish()
            raise_failure(refused.terminal[0])
        assert running.finish().bits == expected
        assert load(model, adapters[:1]) == [digest]
        assert Running(model.engine, asked(digest, 200)).finish().bits == expected


def raise_failure(event: object) -> None:
    assert isinstance(event, RequestFailed)
    raise event.error


def test_a_restarted_worker_has_the_adapters_again(remote: LoadedModel, adapters: list[Path]) -> None:
    engine = remote.engine
    assert isinstance(engine, RemoteEngineClient)
    first, second = load(remote, adapters[:2])
    expected = {one: Running(engine, asked(one, 200)).finish().bits for one in (first, second)}
    running = {one: Running(engine, asked(one, 200)) for one in (first, second)}
    for one in running.values():
        one.next()
    engine.unload_adapter(second)  # its request goes on, in the next worker too
    os.kill(engine.worker_pid, signal.SIGKILL)
    for digest, one in running.items():
        assert one.finish().bits == expected[digest]
    assert Running(engine, asked(first, 200)).finish().bits == expected[first]
    with pytest.raises(ModelNotFound):
        Running(engine, asked(second))


def test_an_adapter_that_changed_on_the_disk_is_not_taken_for_the_old_one(
    remote: LoadedModel, folder: Path, tmp_path: Path
) -> None:
    engine = remote.engine
    assert isinstance(engine, RemoteEngineClient)
    adapter = write_adapter(tmp_path / "adapter", folder, seed=8)
    digest = engine.load_adapter(adapter).digest
    other = write_adapter(tmp_path / "other", folder, seed=9)
    (other / "adapter_model.safetensors").replace(adapter / "adapter_model.safetensors")
    os.kill(engine.worker_pid, signal.SIGKILL)
    while engine.status().restarts == 0:
        time.sleep(0.01)
    [event] = Running(engine, asked(digest)).finish().terminal
    assert isinstance(event, RequestFailed)
    assert isinstance(event.error, ModelNotFound)


def test_what_is_no_adapter_is_refused_by_workers_too(remote: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="there is no adapter at"):
        remote.engine.load_adapter(tmp_path / "none")
    with pytest.raises(ModelNotFound):
        Running(remote.engine, asked("0" * 64))


def test_encoders_have_none(tmp_path: Path, adapters: list[Path]) -> None:
    model = load_model(str(tiny_model(tmp_path, "qwen3")), EngineOptions(threads=1, pooling="last"))
    with pytest.raises(HeadraceError, match="is an encoder"):
        model.engine.load_adapter(adapters[0])
    model.close()


def test_an_adapter_is_known_when_its_worker_ends_at_once() -> None:
    """The next worker is told of it, however late the thread that has asked for it goes on."""
    known, sent = RemoteAdapters(), list[LoadAdapter | UnloadAdapter]()
    known.begin(sent.append)
    asking = threading.Thread(target=lambda: known.load(Path("a"), None))
    asking.start()
    while not sent:
        time.sleep(0.001)
    assert isinstance(sent[0], LoadAdapter)
    known.answer(AdapterResult(sent[0].number, AdapterInfo("digest", 4, 100), None))
    known.lose()
    known.begin(sent.append)
    asking.join()
    assert [one.expected for one in sent[1:] if isinstance(one, LoadAdapter)] == ["digest"]
