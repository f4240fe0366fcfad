"""`headrace bench speculative`: speed-up by draft method, temperature and number of concurrent sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.batch_run import run_together
from headrace.bench.summary import Summary, spread
from headrace.chat.messages import Message
from headrace.chat.prompt import prepare as prepare_conversation
from headrace.engine.client import EngineStatus, LoadedModel
from headrace.engine.request import EngineRequest
from headrace.errors import HeadraceError, UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams

_TABLE = "Table flights (carrier, origin, destination, delay minutes, passengers)\n"
JOBS: Mapping[str, Sequence[str]] = {
    "command": [
        "extract a gzipped tar archive",
        "list all files, hidden ones too, the newest first",
        "search a text in all files of a directory",
        "count the lines of a file",
        "download a file and follow redirects",
        "show the free space of all disks",
        "copy a directory with everything in it",
        "find files that are larger than 100 megabytes",
    ],
    "sql": [
        _TABLE + "Which carrier has more than 200 passengers from Lisbon?",
        _TABLE + "What is the largest delay minutes to Oslo?",
        _TABLE + "How many flights have the origin Athens and the destination Rome?",
        _TABLE + "What is the destination when the carrier is North Wind and the passengers 81?",
    ],
    "edit": [
        f"Repeat this text and write {new} for {old}:\n{text}"
        for old, new, text in (
            (
                "harbour",
                "station",
                "The harbour was quiet. In the harbour lay three ships, and the harbour master slept.",
            ),
            (
                "Anna",
                "Maria",
                "Anna took the letter. When Anna had read it, Anna laid it back, and nobody asked Anna.",
            ),
            (
                "total",
                "count",
                "total = 0\nfor item in items:\n    total = total + item\nprint(total)\nreturn total",
            ),
        )
    ],
}
"""Default prompts by task."""

_TRIES = 3
_TOLERANCE = (
    1.1  # of tokens per step, which bound the speed-up: a step with drafts is no faster than one without
)

Progress = Callable[[str], None]


class SpeculativeBenchConfig(Struct, frozen=True, kw_only=True):
    """What to measure: every draft method at every temperature and batch size, in `pairs` of a run
    without and a run with drafts. `prompts` are by task; `generate` is the maximum number of tokens
    per prompt.
    """

    model: str | None
    prompts: Mapping[str, Sequence[str]]
    temperatures: Sequence[float]
    batches: Sequence[int]
    generate: int
    pairs: int
    raw: bool = False


class SpeculativeBenchResult(Struct, frozen=True, kw_only=True):
    """One cell. `speed_up` is the ratio of tokens per second to the adjacent plain run; `job_speed_up` is
    that of all pairs together, in which a few answers with large gains can outweigh many with small
    losses.
    `tokens_per_step` is per sequence; `accepted` is the share of draft tokens that were accepted.
    """

    job: str
    drafter: str
    temperature: float
    batch: int
    plain_tokens_per_s: Summary
    speed_up: Summary
    job_speed_up: float
    tokens_per_step: float
    drafted_per_token: float
    accepted: float

    @property
    def disturbed(self) -> bool:
        """Whether plain runs were slowed down by something else: no speed-up exceeds the tokens per step."""
        return self.job_speed_up > _TOLERANCE * self.tokens_per_step


class _Run(Struct, frozen=True):
    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    steps: int
    drafted: int
    accepted: int

    @property
    def generated(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))


def bench_speculate(
    order: SpeculativeBenchConfig, options: EngineOptions, *, progress: Progress = lambda text: None
) -> Iterator[SpeculativeBenchResult]:
    """Measure all cells. Raises the errors of loading, and HeadraceError if drafts change a token."""
    if min(order.pairs, order.generate, *order.batches) < 1:
        raise UsageError("--pairs, --tokens and --batch must be at least 1", param="pairs")
    options = replace(options, max_num_seqs=max(options.max_num_seqs, *order.batches))
    progress("loading")
    with _engines(order, options) as (plain, drafting):
        for job, prompts in order.prompts.items():
            ids = [_encode(plain, prompt, raw=order.raw) for prompt in prompts]
            for temperature in order.temperatures:
                for batch in order.batches:
                    progress(f"{job}, temperature {temperature:g}, {batch} concurrent")
                    yield from _cells(order, plain, drafting, job, ids, temperature, batch)


@contextmanager
def _engines(
    order: SpeculativeBenchConfig, options: EngineOptions
) -> Generator[tuple[LoadedModel, Mapping[str, LoadedModel]]]:
    """The plain engine, and one per draft method."""
    alone = replace(options, speculative_model=None, speculative_layers=None)
    shapes = {"lookup": alone}
    if options.named_draft is not None:
        shapes["model"] = options
    if options.speculative_layers is not None:
        shapes["layers"] = options
    with ExitStack() as stack:

        def load(of: EngineOptions) -> LoadedModel:
            return stack.enter_context(closing(load_model(order.model, of)))

        yield load(replace(alone, speculative="off")), {name: load(of) for name, of in shapes.items()}


def _cells(
    order: SpeculativeBenchConfig,
    plain: LoadedModel,
    drafting: Mapping[str, LoadedModel],
    job: str,
    ids: Sequence[tuple[int, ...]],
    temperature: float,
    batch: int,
) -> Iterator[SpeculativeBenchResult]:
    found: dict[str, list[tuple[_Run, _Run]]] = {name: [] for name in drafting}
    # the first pair is a warm-up: costs and acceptance rates are not known yet
    for pair in range(-1, order.pairs):
        requests = [
            EngineRequest(
                prompt=ids[(pair * batch + index) % len(ids)],
                params=SamplingParams(
                    temperature=temperature, max_tokens=order.generate, seed=pair * batch + index
                ),
            )
            for index in range(batch)
        ]
        for name, model in drafting.items():
            if pair % 2:  # the second run of a pair benefits from warm caches
                other, one = _run(model, requests), _run(plain, requests)
            else:
                one, other = _run(plain, requests), _run(model, requests)
            if one.tokens != other.tokens:
                raise HeadraceError(f"{name} changed the output of {job}: this is a bug, please report it")
            if pair >= 0:
                found[name].append((one, other))
    for name, pairs in found.items():
        with_drafts = [run for _, run in pairs]
        generated = sum(run.generated for run in with_drafts)
        drafted = sum(run.drafted for run in with_drafts)
        yield SpeculativeBenchResult(
            job=job,
            drafter=name,
            temperature=temperature,
            batch=batch,
            plain_tokens_per_s=spread([run.generated / run.seconds for run, _ in pairs]),
            speed_up=spread([one.seconds / other.seconds for one, other in pairs]),
            job_speed_up=sum(run.seconds for run, _ in pairs) / sum(run.seconds for run in with_drafts),
            # Without drafts, the number of steps equals the tokens of the longest answer.
            tokens_per_step=sum(run.longest for run in with_drafts) / sum(run.steps for run in with_drafts),
            drafted_per_token=drafted / generated,
            accepted=sum(run.accepted for run in with_drafts) / drafted if drafted else 0.0,
        )


def _encode(model: LoadedModel, prompt: str, *, raw: bool) -> tuple[int, ...]:
    if raw or model.template is None:
        return tuple(model.tokenizer.encode_prompt(prompt))
    conversation = prepare_conversation(model.template, [Message("user", prompt)])
    return tuple(model.tokenizer.encode(conversation.text, add_special=False))


def _run(model: LoadedModel, requests: Sequence[EngineRequest]) -> _Run:
    """Run the requests concurrently, timed from when they are submitted to the last token: the fastest of
    several tries, as a short answer takes less time than another program's turn on a core.

    Their prompts are in the prefix cache by then, so that little of it is prefill. The time after the first
    token would be none at all for an answer that comes in one piece, as short ones of small models do.
    """
    for _ in run_together(model.engine, [_first_token_only(request) for request in requests]):
        pass
    return min((_timed(model, requests) for _ in range(_TRIES)), key=lambda run: run.seconds)


def _timed(model: LoadedModel, requests: Sequence[EngineRequest]) -> _Run:
    before = model.engine.status()
    tokens: list[list[int]] = [[] for _ in requests]
    began_s = now_s = time.monotonic()
    for arrival in run_together(model.engine, requests):
        now_s = arrival.at_s
        tokens[arrival.index] += arrival.tokens
    return _finished(tokens, now_s - began_s, before, model.engine.status())


def _first_token_only(request: EngineRequest) -> EngineRequest:
    return replace(request, params=replace(request.params, max_tokens=1))


def _finished(tokens: list[list[int]], seconds: float, before: EngineStatus, after: EngineStatus) -> _Run:
    return _Run(
        tuple(map(tuple, tokens)),
        max(seconds, 1e-9),
        after.steps - before.steps,
        after.drafted - before.drafted,
        after.accepted - before.accepted,
    )
