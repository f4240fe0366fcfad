"""The bodies of requests and replies about fine-tuning jobs, as OpenAI has them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from headrace.adapt.fine_tuning.order import AdapterPlan
from headrace.api.http.body import RequestBody
from headrace.api.openai.batches import Metadata
from headrace.storage.fine_tuning_jobs import StoredJob, StoredJobEvent

RATE = 2e-4
"""Of AdamW, where `learning_rate_multiplier` is 1."""
Auto = Literal["auto"]
FileId = Annotated[str, Meta(min_length=1, max_length=200)]


class Hyperparameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """How a job trains. `batch_size` is in answers; auto: as many as have about 2,048 tokens."""

    n_epochs: Auto | Annotated[int, Meta(ge=1, le=50)] = "auto"
    batch_size: Auto | Annotated[int, Meta(ge=1, le=256)] = "auto"
    learning_rate_multiplier: Auto | Annotated[float, Meta(gt=0, le=1000)] = "auto"


class SupervisedMethod(Struct, forbid_unknown_fields=True, kw_only=True):
    """Learning what the assistant says."""

    hyperparameters: Hyperparameters = msgspec.field(default_factory=Hyperparameters)


class FineTuningMethod(Struct, forbid_unknown_fields=True, kw_only=True):
    """Supervised learning is the one method that there is."""

    type: Literal["supervised"] = "supervised"
    supervised: SupervisedMethod = msgspec.field(default_factory=SupervisedMethod)


class FineTuningBody(RequestBody, kw_only=True):
    """The body of a new job. `model` is a served model of this machine whose weights are a folder of
    safetensors."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    training_file: FileId
    validation_file: FileId | None = None
    suffix: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\\n)")] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    method: FineTuningMethod | None = None
    hyperparameters: (
        Annotated[
            Hyperparameters, Meta(description="The older place of `method.supervised.hyperparameters`.")
        ]
        | None
    ) = None
    metadata: Metadata | None = None
    integrations: Annotated[list[Any], Meta(max_length=0, description="There are none here.")] | None = None

    @property
    def plan(self) -> AdapterPlan:
        """How to train."""
        asked = self.method.supervised.hyperparameters if self.method is not None else self.hyperparameters
        asked = asked or Hyperparameters()
        default = AdapterPlan()
        times = asked.learning_rate_multiplier
        return AdapterPlan(
            epochs=default.epochs if asked.n_epochs == "auto" else asked.n_epochs,
            batch_size=None if asked.batch_size == "auto" else asked.batch_size,
            rate=min(RATE * (1.0 if times == "auto" else times), 1.0),
            seed=default.seed if self.seed is None else self.seed,
        )


class JobError(Struct, frozen=True, kw_only=True):
    """Why a job has failed."""

    code: str
    message: str
    param: str | None


class FineTuningJob(Struct, frozen=True, kw_only=True):
    """A job."""

    id: str
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: Hyperparameters
    model: str
    result_files: list[str]
    seed: int
    status: str
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    metadata: dict[str, str] | None
    method: FineTuningMethod
    estimated_finish: None = None
    integrations: tuple[()] = ()
    organization_id: str = "org-local"
    object: Literal["fine_tuning.job"] = "fine_tuning.job"


class FineTuningJobList(Struct, frozen=True, kw_only=True):
    """A page of jobs; the next begins after the last one's id."""

    data: list[FineTuningJob]
    has_more: bool
    object: Literal["list"] = "list"


class FineTuningEvent(Struct, frozen=True, kw_only=True):
    """Something that happened to a job."""

    id: str
    created_at: int
    level: str
    message: str
    type: str
    data: dict[str, Any] | None
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"


class FineTuningEventList(Struct, frozen=True, kw_only=True):
    """A page of events, newest first."""

    data: list[FineTuningEvent]
    has_more: bool
    object: Literal["list"] = "list"


class FineTuningCheckpointList(Struct, frozen=True, kw_only=True):
    """No checkpoint of a job is a model: jobs keep one to go on from."""

    data: tuple[()] = ()
    has_more: bool = False
    first_id: None = None
    last_id: None = None
    object: Literal["list"] = "list"


def job_object(job: StoredJob) -> FineTuningJob:
    """A job as the API shows it."""
    plan = msgspec.json.decode(job.plan, type=AdapterPlan)
    used = Hyperparameters(
        n_epochs=plan.epochs,
        batch_size="auto" if plan.batch_size is None else plan.batch_size,
        learning_rate_multiplier=round(plan.rate / RATE, 6),
    )
    return FineTuningJob(
        id=job.id,
        created_at=job.created_s,
        error=None if job.error is None else msgspec.json.decode(job.error, type=JobError),
        fine_tuned_model=job.fine_tuned_model,
        finished_at=job.finished_s,
        hyperparameters=used,
        model=job.model,
        result_files=[] if job.result_file is None else [job.result_file],
        seed=plan.seed,
        status=job.status,
        trained_tokens=job.trained_tokens,
        training_file=job.training_file,
        validation_file=job.validation_file,
        metadata=None if job.metadata is None else json.loads(job.metadata),
        method=FineTuningMethod(supervised=SupervisedMethod(hyperparameters=used)),
    )


def event_object(event: StoredJobEvent) -> FineTuningEvent:
    """An event as the API shows it."""
    return FineTuningEvent(
        id=event.id,
        created_at=event.created_s,
        level=event.level,
        message=event.message,
        type=event.type,
        data=None if event.data is None else json.loads(event.data),
    )
