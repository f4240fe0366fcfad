"""/v1/fine_tuning/jobs: adapters trained on uploaded conversations; every key sees its own jobs."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.adapt.fine_tuning.runner import FineTuningRunner
from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.openai.files import file_not_found
from headrace.api.openai.fine_tuning_schema import (
    FineTuningBody,
    FineTuningCheckpointList,
    FineTuningEventList,
    FineTuningJob,
    FineTuningJobList,
    event_object,
    job_object,
)
from headrace.api.openai.lora_adapters import OFF, adapter_folder
from headrace.api.service import Service, get_service
from headrace.config.extras import require
from headrace.errors import InvalidRequest
from headrace.storage.files import Files
from headrace.storage.fine_tuning_jobs import OPEN, FineTuningJobs, StoredJob

MAX_OPEN_JOBS = 20
"""Of one key."""
PURPOSE = "fine-tune"


class JobsQuery(Query, frozen=True):
    """The query of a list of jobs or events."""

    after: str | None = None
    limit: Annotated[int, page_size(100)] = 20


@Endpoint("POST", "/v1/fine_tuning/jobs", body=FineTuningBody, reply=FineTuningJob, errors=OFF)
async def create_job(http: HttpRequest) -> Response:
    """Begin to train an adapter; needs a key with the scope admin. It is computed beside requests, at the
    lowest priority, and then served as `fine_tuned_model`."""
    service, owner = get_service(http), call_of(http).account.owner
    runner = _runner(http, service)
    body = await read_checked(FineTuningBody, http)
    entry = service.find(body.model, call_of(http))
    await service.run_in_thread(lambda: runner.check_base(entry.name))

    def begin() -> StoredJob:
        jobs = FineTuningJobs(service.database)
        if len(jobs.open_jobs(owner())) >= MAX_OPEN_JOBS:
            raise InvalidRequest(f"{MAX_OPEN_JOBS} jobs of this key have not ended: wait, or cancel some")
        validation = body.validation_file
        return jobs.add(
            owner(),
            model=entry.name,
            suffix=body.suffix,
            training=(body.training_file, _content(service, owner(), body.training_file, "training_file")),
            validation=None
            if validation is None
            else (validation, _content(service, owner(), validation, "validation_file")),
            plan=msgspec.json.encode(body.plan).decode(),
            metadata=None if body.metadata is None else json.dumps(body.metadata),
        )

    job = await service.run_in_thread(begin)
    runner.look()
    return json_response(job_object(job))


def _content(service: Service, owner: str, file_id: str, param: str) -> bytes:
    files = Files(service.database)
    file = files.get(owner, file_id) if service.database.exists else None
    if file is None:
        raise file_not_found(file_id, param)
    if file.purpose != PURPOSE:
        raise InvalidRequest(
            f"the file's purpose is {file.purpose!r}: upload it with the purpose {PURPOSE!r}", param=param
        )
    return b"".join(files.parts(file.id))


@Endpoint("GET", "/v1/fine_tuning/jobs", reply=FineTuningJobList, query=JobsQuery)
async def list_jobs(http: HttpRequest) -> Response:
    """The caller's jobs, newest first."""
    service, owner = get_service(http), call_of(http).account.owner
    query = read_query(JobsQuery, http)

    def read() -> list[StoredJob]:
        if not service.database.exists:
            return []
        return FineTuningJobs(service.database).page(owner(), after=query.after, limit=query.limit + 1)

    found = [job_object(job) for job in await service.run_in_thread(read)]
    return json_response(FineTuningJobList(data=found[: query.limit], has_more=len(found) > query.limit))


@Endpoint("GET", "/v1/fine_tuning/jobs/{job_id}", reply=FineTuningJob)
async def get_job(http: HttpRequest, job_id: str) -> Response:
    """One of the caller's jobs."""
    return json_response(job_object(await _find(http, job_id)))


@Endpoint("GET", "/v1/fine_tuning/jobs/{job_id}/events", reply=FineTuningEventList, query=JobsQuery)
async def list_job_events(http: HttpRequest, job_id: str) -> Response:
    """What happened to one of the caller's jobs, with the loss of its steps; newest first."""
    service, query = get_service(http), read_query(JobsQuery, http)
    job = await _find(http, job_id)
    jobs = FineTuningJobs(service.database)
    events = await service.run_in_thread(
        lambda: jobs.events(job.id, after=query.after, limit=query.limit + 1)
    )
    found = [event_object(event) for event in events]
    return json_response(FineTuningEventList(data=found[: query.limit], has_more=len(found) > query.limit))


@Endpoint("GET", "/v1/fine_tuning/jobs/{job_id}/checkpoints", reply=FineTuningCheckpointList, query=JobsQuery)
async def list_job_checkpoints(http: HttpRequest, job_id: str) -> Response:
    """None: no checkpoint of a job is a model."""
    read_query(JobsQuery, http)
    await _find(http, job_id)
    return json_response(FineTuningCheckpointList())


@Endpoint("POST", "/v1/fine_tuning/jobs/{job_id}/cancel", reply=FineTuningJob, errors=OFF)
async def cancel_job(http: HttpRequest, job_id: str) -> Response:
    """End one of the caller's jobs; nothing of it stays."""
    return await _move(http, job_id, "cancelled", of=(*OPEN, "paused"))


@Endpoint("POST", "/v1/fine_tuning/jobs/{job_id}/pause", reply=FineTuningJob, errors=OFF)
async def pause_job(http: HttpRequest, job_id: str) -> Response:
    """Stop one of the caller's jobs until it is resumed."""
    return await _move(http, job_id, "paused", of=OPEN)


@Endpoint("POST", "/v1/fine_tuning/jobs/{job_id}/resume", reply=FineTuningJob, errors=OFF)
async def resume_job(http: HttpRequest, job_id: str) -> Response:
    """Go on with a paused job from its last checkpoint."""
    return await _move(http, job_id, "queued", of=("paused",))


async def _move(http: HttpRequest, job_id: str, status: str, *, of: tuple[str, ...]) -> Response:
    service = get_service(http)
    runner = _runner(http, service)
    job = await _find(http, job_id)
    jobs = FineTuningJobs(service.database)
    moved = await service.run_in_thread(lambda: jobs.move(job.id, status, of=of))
    job = await _find(http, job_id)
    if not moved:
        raise InvalidRequest(
            f"the job is {job.status}: this is for one that is {', '.join(of)}", param="fine_tuning_job_id"
        )
    runner.stop(job.id)
    return json_response(job_object(job))


async def _find(http: HttpRequest, job_id: str) -> StoredJob:
    service, owner = get_service(http), call_of(http).account.owner

    def read() -> StoredJob | None:
        if not service.database.exists:
            return None
        return FineTuningJobs(service.database).get(owner(), job_id)

    job = await service.run_in_thread(read)
    if job is None:
        raise NotFound(f"there is no fine-tuning job {job_id[:80]!r}")
    return job


def _runner(http: HttpRequest, service: Service) -> FineTuningRunner:
    """NotEnabled where adapters cannot come over HTTP, ExtraMissing without the trainer's libraries."""
    adapter_folder(service)
    require("train", "torch", "transformers", "peft")
    runner = http.app.state.fine_tuning
    assert isinstance(runner, FineTuningRunner)
    return runner
