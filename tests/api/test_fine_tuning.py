"""Fine-tuning jobs by OpenAI's own client: an adapter learns a file of conversations, and is served."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from test_lora_adapters import served

from headrace.adapt.fine_tuning.order import MODULE
from headrace.adapt.fine_tuning.runner import FineTuningRunner
from headrace.errors import ModelNotFound
from headrace.inference.store_threads import StoreThreads
from headrace.storage.database import Database
from headrace.storage.fine_tuning_jobs import FineTuningJobs
from tiny import tiny_model

LIBRARIES = ("torch", "transformers", "peft")  # which take seconds to import: the server does
pytestmark = pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason="needs headrace[train]")

KEYS = ("--api-key", "client", "--admin-api-key", "boss", "--adapter-dir", "adapters")
ANSWER = "pong!"
LINE = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": ANSWER}]}
LEARNING = {"n_epochs": 30, "batch_size": 4, "learning_rate_multiplier": 100}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    tiny_model(folder, "llama3")
    return folder


@pytest.fixture(scope="module")
def http(place: Path) -> Iterator[httpx.Client]:
    with served(place, str(place / "llama3"), *KEYS) as (client, _):
        yield client


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[openai.OpenAI]:
    with client_of(http) as client:
        yield client


@contextmanager
def client_of(http: httpx.Client, key: str = "boss") -> Iterator[openai.OpenAI]:
    with httpx.Client(trust_env=False, timeout=60) as own:
        yield openai.OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0, http_client=own)


def uploaded(client: openai.OpenAI, *lines: object, times: int = 12, purpose: Any = "fine-tune") -> str:
    text = "\n".join(json.dumps(line) for line in lines * times)
    return client.files.create(file=("data.jsonl", text.encode()), purpose=purpose).id


def said(client: openai.OpenAI, model: str) -> str:
    messages: Any = [{"role": "user", "content": "ping"}]
    reply = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12)
    return reply.choices[0].message.content or ""


def ended(client: openai.OpenAI, job_id: str) -> Any:
    while True:
        job = client.fine_tuning.jobs.retrieve(job_id)
        if job.status in ("succeeded", "failed", "cancelled"):
            return job
        time.sleep(0.1)


def until_running(client: openai.OpenAI, job_id: str) -> None:
    while (status := client.fine_tuning.jobs.retrieve(job_id).status) != "running":
        assert status in ("validating_files", "queued")
        time.sleep(0.05)


def until(happened: Callable[[], object]) -> None:
    while not happened():
        time.sleep(0.02)


def created(client: openai.OpenAI, file: str, **more: Any) -> Any:
    given: dict[str, Any] = {"model": "llama3", "hyperparameters": LEARNING, **more}
    return client.fine_tuning.jobs.create(training_file=file, **given)


def test_an_adapter_learns_what_a_file_says(client: openai.OpenAI, http: httpx.Client) -> None:
    file = uploaded(client, LINE)
    before = said(client, "llama3")
    job = created(client, file, validation_file=file, suffix="ping", seed=3, metadata={"for": "tests"})
    assert job.object == "fine_tuning.job" and job.status == "validating_files"
    assert (job.training_file, job.seed, job.metadata) == (file, 3, {"for": "tests"})
    job = ended(client, job.id)
    assert job.status == "succeeded", job.error
    assert job.fine_tuned_model and job.fine_tuned_model.startswith("llama3:ft-ping-")
    assert said(client, job.fine_tuned_model) == ANSWER
    assert said(client, "llama3") == before != ANSWER
    assert job.trained_tokens and job.finished_at
    [result] = job.result_files
    rows = client.files.content(result).text.splitlines()
    first, last = (float(row.split(",")[1]) for row in (rows[1], rows[-1]))
    assert rows[0] == "step,train_loss,valid_loss" and len(rows) == 91 and last < 0.1 < first
    assert float(rows[-1].split(",")[2]) < 0.1
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
    assert events[0].message == f"New fine-tuned model: {job.fine_tuned_model}"
    steps = [event.data for event in events if event.type == "metrics"]
    assert steps[0] == {"step": 90, "total_steps": 90, "train_loss": pytest.approx(last, abs=1e-4)}
    assert len(steps) == 90
    assert job.id in [one.id for one in client.fine_tuning.jobs.list(limit=1)]
    assert list(client.fine_tuning.jobs.checkpoints.list(job.id)) == []
    models = [one.id for one in client.models.list()]
    assert job.fine_tuned_model in models


def test_a_job_is_paused_resumed_and_cancelled(client: openai.OpenAI, place: Path) -> None:
    job = created(client, uploaded(client, LINE, times=200), hyperparameters={"n_epochs": 50})
    until_running(client, job.id)
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    with pytest.raises(openai.BadRequestError, match="the job is paused"):
        client.fine_tuning.jobs.pause(job.id)
    kept = place / "adapters" / ".fine-tuning" / job.id
    assert kept.is_dir()
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    until(lambda: not kept.exists())
    while (place / "adapters" / ".fine-tuning" / job.id).exists():
        time.sleep(0.05)
    with pytest.raises(openai.BadRequestError, match="the job is cancelled"):
        client.fine_tuning.jobs.resume(job.id)


def is_training(process: psutil.Process) -> bool:
    return MODULE in process.cmdline()


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.nightly
def test_an_adapter_that_cannot_be_loaded_stays_nowhere(place: Path, tmp_path: Path) -> None:
    """Its job has failed, and the next one is computed."""
    database = Database(tmp_path / "store.db")
    jobs, threads = FineTuningJobs(database), StoreThreads()
    adapters = tmp_path / "adapters"
    training = ("file-1", "\n".join([json.dumps(LINE)] * 10).encode())
    plan = json.dumps({"epochs": 1})
    job = jobs.add("o", model="m", suffix=None, training=training, validation=None, plan=plan, metadata=None)
    asked: list[Path] = []

    async def load(model: str, name: str, path: Path) -> str:
        assert (path / "adapter_model.safetensors").is_file()
        asked.append(path)
        raise ModelNotFound("the model is not served any more", param="model")

    async def unload(model: str, name: str) -> None:
        raise AssertionError

    async def compute() -> None:
        runner = FineTuningRunner(
            *(database, threads, adapters),
            base_of=lambda model: place / "llama3",
            load=load,
            unload=unload,
            cores=1,
            hours=1,
        )
        async with runner.serving():
            while list(adapters.glob("*/*")) or jobs.open_jobs():
                await asyncio.sleep(0.02)

    asyncio.run(compute())
    found = jobs.get("o", job.id)
    assert found is not None and found.status == "failed" and "not served any more" in (found.error or "")
    assert [one.parent for one in asked] == [adapters] and not asked[0].exists()
    threads.close()
    database.close()


@pytest.mark.soak
def test_a_killed_server_goes_on_with_its_jobs(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama3")
    with served(tmp_path, str(tmp_path / "llama3"), *KEYS) as (http, process), client_of(http) as client:
        job = created(client, uploaded(client, LINE))
        until_running(client, job.id)
        [training] = [one for one in psutil.Process(process.pid).children() if is_training(one)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: has_ended(training))
    for _ in range(2):  # the second has it from its start
        with served(tmp_path, str(tmp_path / "llama3"), *KEYS) as (http, _), client_of(http) as client:
            job = ended(client, job.id)
            assert job.status == "succeeded", job.error
            while job.fine_tuned_model not in [one.id for one in client.models.list()]:
                time.sleep(0.05)
            assert said(client, job.fine_tuned_model) == ANSWER
    assert not list((tmp_path / "adapters" / ".fine-tuning").iterdir())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LINE], "the file has 1 examples, it must have 10 to 50,000"),
        ([LINE] * 10 + [{"messages": [{"role": "user", "content": "a"}] * 2}], "line 11: the last message"),
        ([LINE] * 10 + [{"prompt": "a", "completion": "b"}], "line 11: Object contains unknown field"),
        ([LINE] * 10 + [{**LINE, "x" * 100_000: 1}], "line 11: Object contains unknown field `xxx"),
        ([{"messages": [*LINE["messages"][:1], {**LINE["messages"][1], "weight": 0}]}] * 10, "no answer"),
        ([LINE] * 10 + [{**LINE, "tools": []}], "line 11: Object contains unknown field `tools`"),
        (
            [LINE] * 10
            + [{"messages": [*LINE["messages"][:1], {"role": "assistant", "content": "a" * 9999}]}],
            "line 11: the conversation has 10,",
        ),
    ],
)
def test_a_wrong_file_fails_its_job(client: openai.OpenAI, lines: list[object], message: str) -> None:
    job = ended(client, created(client, uploaded(client, *lines, times=1)).id)
    assert job.status == "failed" and job.error is not None
    assert (job.error.code, job.error.param) == ("invalid_training_file", "training_file")
    assert message in job.error.message
    assert job.fine_tuned_model is None
    assert client.fine_tuning.jobs.list_events(job.id).data[0].level == "error"


def test_what_cannot_be_done_is_refused(client: openai.OpenAI, http: httpx.Client) -> None:
    file = uploaded(client, LINE)
    with client_of(http, "client") as other, pytest.raises(openai.PermissionDeniedError):
        created(other, file)
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        created(client, "file-none")
    with pytest.raises(openai.BadRequestError, match="'fine-tune'"):
        created(client, uploaded(client, LINE, purpose="batch"))
    with pytest.raises(openai.NotFoundError):
        created(client, file, model="nobody")
    for more in (
        {"suffix": "../../x"},
        {"suffix": "x\n"},
        {"method": {"type": "dpo"}},
        {"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]},
        {"hyperparameters": {"n_epochs": 51}},
        {"hyperparameters": {"n_epochs": 0}},
        {"hyperparameters": {"learning_rate_multiplier": -1}},
    ):
        with pytest.raises(openai.BadRequestError):
            created(client, file, **more)
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.retrieve("ftjob-1")
