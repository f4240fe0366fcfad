"""A loaded model and the interface of its engine, in this process or another: limits, status, memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.engine.adapters import AdapterInfo
from headrace.engine.pacing import PaceOptions
from headrace.engine.request import EngineRequest, EventCallback, RequestHandle
from headrace.engine.step_times import StepBound
from headrace.errors import Overloaded
from headrace.executors.kv_layers import KvType
from headrace.sampling.params import SamplingParams
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.head import Head, TaskName, tasks_without_head
from headrace.weights.input_rules import InputRules

EngineState = Literal["running", "restarting", "failed"]


class EngineLimits(Struct, frozen=True, kw_only=True):
    """`context_length` in tokens; `max_waiting` sequences may queue; one class of priority per `ageing_s`.

    `embedding_size` is how many numbers a row of output has: the vector of a text or of a token, or the
    scores of a head; 0 where the model generates text instead.
    `may_speculate` says that speculation is off and could be on.
    `model_context_length` is the longest that the model could be loaded with, 0 if unknown. `pace` bounds
    steps, and `bound` says what they take before one was measured.
    """

    context_length: int
    max_num_seqs: int
    max_waiting: int = 4096
    ageing_s: float = 5.0
    embedding_size: int = 0
    vector_of_each_token: bool = False
    model_context_length: int = 0
    may_speculate: bool = False
    pace: PaceOptions = PaceOptions()
    bound: StepBound = StepBound()

    @property
    def max_choices(self) -> int:
        """Most choices that may be queued or running."""
        return self.max_waiting + self.max_num_seqs

    def check_room(self, pending: int, choices: int) -> None:
        """Raise Overloaded where `choices` more in addition to `pending` ones are too many."""
        if pending + choices > self.max_choices:
            raise Overloaded(
                f"{pending:,} sequences are queued or running, at most {self.max_choices:,} are allowed: "
                "try again later"
            )


class EngineStatus(Struct, frozen=True):
    """A snapshot. `last_step_s` is the monotonic time at which the loop last made progress.

    `preemptions`, tokens that were `drafted` and those of them `accepted`, and the `masks` of grammars with
    the seconds they took, are counted since the loop's start.
    While it `waits_for_turn` another model computes.
    For `stalled_s` it had something to compute and made no step, of which the longest took `longest_step_s`.
    `step_costs` are the fitted seconds of a step, per token of prompts, per row that generates and per pair
    of tokens (StepTimes), None before they are known.
    An engine in a process of its own may be `restarting`, as it did `restarts` times, or have `failed` for
    good, with the cause in `failure`; until then it is alive.
    """

    running: int
    waiting: int
    free_pages: int
    available_pages: int
    page_count: int
    steps: int
    last_step_s: float
    alive: bool
    preemptions: int = 0
    masks: int = 0
    mask_s: float = 0.0
    state: EngineState = "running"
    restarts: int = 0
    failure: str | None = None
    drafted: int = 0
    accepted: int = 0
    stalled_s: float = 0.0
    longest_step_s: float = 0.0
    waits_for_turn: bool = False
    step_costs: tuple[float, float, float, float] | None = None


class EngineClient(Protocol):
    """An engine of this process or another one. Every method may be called from any thread."""

    @property
    def limits(self) -> EngineLimits:
        """Its context length, and how many sequences may run and wait."""
        ...

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """Queue a request; `sink` gets its events. Raises a typed error before anything is computed.

        Waits while the request's constraint is compiled, where it has one: up to some seconds.
        """
        ...

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """As `submit`, without waiting: the future has its outcome. Where that is cancelled before, the
        request is dropped and has no events."""
        ...

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """Load a low-rank adapter from a folder of PEFT or a GGUF file, for requests that name its digest;
        waits until it is there. Raises what prevents it, and CorruptFile where its digest is not the
        `expected` one."""
        ...

    def unload_adapter(self, digest: str) -> None:
        """Take no more requests for an adapter; those that run end as they would."""
        ...

    def status(self) -> EngineStatus:
        """The engine's present state."""
        ...

    def close(self) -> None:
        """Stop; requests that have not ended fail with EngineStopped."""
        ...


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """Bytes, when every page is in use. `base_bytes` is the process before the model: Python and libraries.

    `weight_bytes_per_token` is what a decode step of one sequence reads; the token table is read by the row,
    so it counts only where it is the output matrix too, and of a mixture only the experts of one token count.
    A step has at most `step_tokens` and computes the output of `step_rows` of them. `operations_per_token`
    are multiplications and additions of a generated token, mostly with weights of `weight_format`.
    In a model without a KV cache a page has no bytes: every sequence has one, as long as the context.
    """

    context: int
    kv_type: KvType
    weights_bytes: int
    kv_bytes: int
    state_bytes: int
    activation_bytes: int
    base_bytes: int
    page_count: int
    page_tokens: int
    weight_bytes_per_token: int
    step_tokens: int
    step_rows: int
    draft_bytes: int = 0  # of a draft model, all together
    operations_per_token: float = 0.0
    weight_format: str = ""
    smaller_bytes_per_token: int = 0  # of weight_bytes_per_token in int4, where weights are int8; 0 elsewhere
    reads_memory: bool = True  # whether the weights are too many for the processor's caches
    process_bytes: tuple[int, ...] = ()  # of each process, where the model is in several

    @property
    def own_bytes(self) -> int:
        """Bytes of the model itself, without its draft model."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.activation_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the process; of the largest, where the model is in several: a budget is that of each."""
        return max(self.process_bytes, default=self.bytes_of_all)

    @property
    def bytes_of_all(self) -> int:
        """Bytes of all processes."""
        return self.own_bytes + self.draft_bytes + self.base_bytes


class LoadedModel(Struct, frozen=True, kw_only=True):
    """A running model: tokenizer, template and engine. `defaults` come from generation_config.json;
    `template_variables` go into every conversation that does not say otherwise.

    `adapter` is the digest of the adapter that its engine's requests use, "" for none;
    then `base` is the name of the model without it.
    `head` is what an encoder has on its states; None for embedders and generators. `input_rules` are its
    prompts and marks.
    `cache_failures` counts packed weights that could not be kept on the disk for the next time,
    `cache_damages` those that were kept and have changed since, so that they were packed again.
    """

    name: str
    folder: Path
    context_length: int
    tokenizer: Tokenizer
    template: ChatTemplate | None
    engine: EngineClient
    defaults: SamplingParams
    plan: MemoryPlan
    created_s: int
    template_variables: Mapping[str, Any] = {}
    cache_failures: int = 0
    cache_damages: int = 0
    head: Head | None = None
    input_rules: InputRules = InputRules()
    adapter: str = ""
    base: str = ""

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """What the model can be asked for."""
        if self.head is not None:
            return self.head.tasks
        limits = self.engine.limits
        return tasks_without_head(
            encodes=limits.embedding_size > 0, of_each_token=limits.vector_of_each_token
        )

    def close(self) -> None:
        """Stop the engine; what has not ended fails."""
        self.engine.close()
