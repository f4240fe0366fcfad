"""A student that generates: data from the teacher, training, the paired test, the folder."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.chat.messages import Message
from headrace.chat.templates.chat_template import ChatTemplate, missing_template
from headrace.distil.answers import TeacherAnswer, answers_of, recorded
from headrace.distil.endpoint import TeacherEndpoint
from headrace.distil.learning.loss_plot import plot_losses
from headrace.distil.learning.student import load_student, write_student
from headrace.distil.learning.training import Batch, Trainer, TrainingPlan
from headrace.distil.paired_test import check_better
from headrace.distil.probe import ProbeResult, probe
from headrace.distil.samples import Parts, Prompt, Sample, shards, split, windows_of
from headrace.distil.teacher_data import TOP, TeacherData, TopK, top_of
from headrace.errors import UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.text_assets import load_text_assets
from headrace.models.registry import find_model
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.resolver import resolve

ROUND = 50
"""Steps between two draws of what the student itself writes."""
OWN_PROMPT = 32
"""Tokens of a window that the student goes on from."""
LOSS_PLOT = "distil_loss.png"
_ASKED_AT_ONCE = 32
LONGEST_PROMPT = 2048
"""Tokens; longer ones are left out, and counted."""
Show = Callable[[str], None]
StepProgress = Callable[[int, int, float], None]


class DistilOrder(Struct, frozen=True, kw_only=True):
    """`teacher` is a model, or `endpoint` answers in its place. The student in the folder `student` reads
    windows of the text `data`, or answers to `prompts`. `on_policy` is the share of batches that the student
    writes itself. `probe` are questions with known answers."""

    teacher: str
    student: Path
    options: EngineOptions
    work: Path
    threads: int
    endpoint: TeacherEndpoint | None = None
    data: str | None = None
    prompts: tuple[Prompt, ...] = ()
    probe: tuple[Prompt, ...] = ()
    least_right: float = 0.75
    on_policy: float = 0.0
    steps: int | None = None
    hours: float = 1.0
    rate: float = 0.01
    table_rate: float = 0.001
    window: int = 256
    batch_tokens: int = 2048
    top_k: int = TOP
    max_tokens: int = 256
    seed: int = 1

    def check(self) -> None:
        """UsageError for what contradicts itself."""
        if (self.data is None) == (not self.prompts):
            raise UsageError("give either --data, a text, or --prompts", param="data")
        if self.endpoint is not None and self.data is not None:
            raise UsageError(
                "an address gives answers, not probabilities: give --prompts instead of --data", param="data"
            )
        if not 0 <= self.on_policy <= 1:
            raise UsageError(f"--on-policy is {self.on_policy}: give a share from 0 to 1", param="on_policy")
        if self.on_policy and self.endpoint is not None:
            raise UsageError(
                "--on-policy needs the teacher's probabilities, which an address does not give",
                param="on_policy",
            )


class DistilReport(Struct, frozen=True, kw_only=True):
    """How it went. Losses are nats of a learned token: of batches at the beginning and the end, and of
    held-out samples before and after; `p_worse` and `p_better` are of the paired test of these."""

    steps: int
    samples: int
    held_out: int
    own_samples: int
    loss_first: float
    loss_last: float
    held_out_before: float
    held_out_after: float
    p_worse: float
    p_better: float
    kind: str
    left_out: int = 0
    probe: ProbeResult | None = None


def distil(order: DistilOrder, out: Path, show: Show, progress: StepProgress) -> DistilReport:
    """Train, and write the student to the folder `out`. WrongTeacher, StudentWorse, UsageError."""
    order.check()
    order.work.mkdir(parents=True, exist_ok=True)
    tokenizer, template = load_text_assets(order.student, None)
    teacher = _Teacher(order, tokenizer, template, show)
    result = teacher.probed()
    samples, left_out = teacher.samples()
    parts = split(samples)
    show("loading the student")
    model = load_student(order.student)
    trainer = Trainer(model, _plan(order, parts), order.work)
    tops = teacher.data() if teacher.gives_probabilities else None

    def batch(some: Sequence[Sample]) -> Batch:
        return some, None if tops is None else tops.of(some)

    held = [batch(one) for one in shards(parts.held_out, order.batch_tokens)]
    before = _before(order.work, trainer, held)
    draw = _Batches(order, parts, trainer, model, tokenizer)
    trainer.train(lambda step: batch(draw.of(step)), progress)
    show("testing the student")
    after = trainer.losses_of(held)
    worse, better = check_better(before, after)
    write_student(model.cpu(), order.student, out)
    plot_losses(trainer.losses, out / LOSS_PLOT)
    first, last = trainer.losses[:20], trainer.losses[-20:]
    return DistilReport(
        steps=trainer.step,
        samples=len(parts.training),
        held_out=len(parts.held_out),
        own_samples=draw.drawn,
        loss_first=float(np.mean(first)),
        loss_last=float(np.mean(last)),
        held_out_before=float(before.mean()),
        held_out_after=float(after.mean()),
        p_worse=worse,
        p_better=better,
        kind="sequences" if tops is None else f"probabilities of {order.top_k} tokens and the rest",
        left_out=left_out,
        probe=result,
    )


class _Teacher:
    """What the order's teacher gives."""

    def __init__(
        self, order: DistilOrder, tokenizer: Tokenizer, template: ChatTemplate | None, show: Show
    ) -> None:
        self._order, self._tokenizer, self._template, self._show = order, tokenizer, template, show
        self._model: NextTokenModel | None = None
        if order.endpoint is None:
            show("loading the teacher")
            longest = order.window
            if order.prompts:
                longest = min(_context_of(order.teacher, order), LONGEST_PROMPT + order.max_tokens)
            stored = replace(order.options, quantization="keep")
            self._model = NextTokenModel(order.teacher, stored, longest=longest)
            self._longest = min(longest, _context_of(str(order.student), order))

    @property
    def gives_probabilities(self) -> bool:
        """A model with the student's tokens does."""
        if self._model is None:
            return False
        other = self._model.tokenizer
        text = self._order.data[:4000] if self._order.data else self._order.prompts[0].text
        same = other.encode(text) == self._tokenizer.encode(text) and other.eos_ids == self._tokenizer.eos_ids
        if not same and self._order.data is not None:
            raise UsageError(
                f"{self._model.name} and {self._order.student.name} do not have the same tokens: the student"
                " can only learn answers from it: give --prompts instead of --data",
                param="data",
            )
        return same

    def probed(self) -> ProbeResult | None:
        """None where a local teacher has no questions with known answers."""
        order = self._order
        known = order.probe or tuple(
            one for one in order.prompts if one.answer is not None and len(one.answer.split()) <= 5
        )
        if not order.least_right or (order.endpoint is None and len(known) < 8):
            return None
        self._show("asking the teacher what is known")
        source = "questions of --probe" if order.probe else "prompts with known answers"
        return probe(self._texts, _held(known), source=source, least=order.least_right)

    def samples(self) -> tuple[list[Sample], int]:
        """To train on and to test with; how many were too long."""
        order = self._order
        if order.data is not None:
            return windows_of(order.data, self._tokenizer, order.window), 0
        prompts = [self._prompt_ids(one) for one in order.prompts]
        answers = self._answers(prompts)
        end = min(self._tokenizer.eos_ids, default=None)
        found: list[Sample] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = [*prompt, *answer.tokens, *([end] if answer.ended and end is not None else [])]
            if len(prompt) < len(ids) <= self._context:
                found.append(Sample(np.array(ids, np.int32), len(prompt)))
        return found, len(prompts) - len(found)

    def data(self) -> TeacherData:
        """Probabilities, kept by content."""
        model = self._model
        assert model is not None

        def top(sample: Sample) -> TopK:
            logs = np.concatenate(list(model.log_probs(sample.tokens, sample.first - 1)))
            return top_of(logs, self._order.top_k)

        folder = self._order.work / "teacher"
        return TeacherData(folder, _weights_of(self._order), top, k=self._order.top_k)

    @property
    def _context(self) -> int:
        return self._longest if self._model is not None else 1 << 15

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if self._template is None:
            if len(prompt.messages) > 1:
                raise missing_template(self._order.student.name)
            return self._tokenizer.encode(prompt.text)
        text = self._template.render([Message(one["role"], one["content"]) for one in prompt.messages])
        return self._tokenizer.encode(text, add_special=False)

    def _answers(self, prompts: Sequence[list[int]]) -> list[TeacherAnswer]:
        order = self._order
        key = hashlib.sha256(
            json.dumps([order.teacher, _weights_of(order), prompts, order.max_tokens]).encode()
        )
        self._show("the teacher answers")
        file = order.work / f"answers-{key.hexdigest()[:24]}.jsonl"
        same = self.gives_probabilities

        def make(places: range) -> list[str]:
            if not same:
                texts = self._texts([order.prompts[place] for place in places])
                read = [
                    TeacherAnswer(tuple(self._tokenizer.encode(one, add_special=False)), True)
                    for one in texts
                ]
            else:
                read = self._local([prompts[place] for place in places])
            return [json.dumps({"tokens": one.tokens, "ended": one.ended}) for one in read]

        lines = recorded(file, len(prompts), make, at_once=_ASKED_AT_ONCE if not same else 256)
        return [TeacherAnswer(tuple(one["tokens"]), one["ended"]) for one in map(json.loads, lines)]

    def _local(self, prompts: Sequence[list[int]]) -> list[TeacherAnswer]:
        order = self._order
        with closing(load_model(order.teacher, replace(order.options, quantization="keep"))) as loaded:
            return answers_of(loaded, prompts, max_tokens=order.max_tokens)

    def _texts(self, prompts: Sequence[Prompt]) -> list[str]:
        order = self._order
        if order.endpoint is not None:
            return order.endpoint.answers(prompts, max_tokens=order.max_tokens)
        with closing(load_model(order.teacher, replace(order.options, quantization="keep"))) as loaded:
            template = loaded.template
            texts = [
                one.text
                if template is None
                else template.render([Message(m["role"], m["content"]) for m in one.messages])
                for one in prompts
            ]
            ids = [loaded.tokenizer.encode(text, add_special=template is None) for text in texts]
            said = answers_of(loaded, ids, max_tokens=order.max_tokens)
            return [loaded.tokenizer.decode(one.tokens).strip() for one in said]


class _Batches:
    """The samples of each step: a function of the seed, the step and, for what the student writes, of its
    weights at the beginning of the round."""

    def __init__(
        self, order: DistilOrder, parts: Parts, trainer: Trainer, model: object, tokenizer: Tokenizer
    ) -> None:
        self._order, self._trainer, self._model = order, trainer, model
        self._shards = shards(parts.training, order.batch_tokens)
        self._training, self._tokenizer = parts.training, tokenizer
        self._round, self._own = -1, list[tuple[Sample, ...]]()
        self._own_prompt = min(OWN_PROMPT, order.window // 2)
        self.drawn = 0

    def of(self, step: int) -> tuple[Sample, ...]:
        """The samples of a step."""
        order = self._order
        if order.on_policy and np.random.default_rng([order.seed, 1, step]).random() < order.on_policy:
            if step // ROUND != self._round:
                self._begin(step // ROUND)
            if self._own:
                return self._own[step % len(self._own)]
        epoch, place = divmod(step, len(self._shards))
        return self._shards[
            np.random.default_rng([order.seed, 2, epoch]).permutation(len(self._shards))[place]
        ]

    def _begin(self, number: int) -> None:
        """What the student writes now, once for the round."""
        order, self._round = self._order, number
        file = order.work / f"own-{number}.jsonl"
        prompts = self._prompts(number)

        def make(places: range) -> list[str]:
            folder = order.work / "student"
            self._trainer.save()
            write_student(self._trainer.model, order.student, folder)
            options = replace(order.options, quantization="keep", cache_dir=None)
            with closing(load_model(str(folder), options)) as loaded:
                said = answers_of(
                    loaded,
                    [prompts[place] for place in places],
                    max_tokens=min(order.max_tokens, order.window - self._own_prompt),
                    temperature=1.0,
                    seed=order.seed * 1_000_003 + number * 10_007,
                )
            return [
                json.dumps([*prompts[place], *one.tokens]) for place, one in zip(places, said, strict=True)
            ]

        rows = [json.loads(line) for line in recorded(file, len(prompts), make, at_once=1 << 20)]
        found = [
            Sample(np.array(row, np.int32), len(prompt))
            for row, prompt in zip(rows, prompts, strict=True)
            if len(row) > len(prompt)
        ]
        self.drawn += len(found)
        self._own = shards(found, order.batch_tokens)

    def _prompts(self, number: int) -> list[list[int]]:
        order = self._order
        random = np.random.default_rng([order.seed, 3, number])
        per_batch = max(order.batch_tokens // order.window, 1)
        count = max(int(ROUND * order.on_policy * per_batch), 1)
        chosen = random.choice(len(self._training), min(count, len(self._training)), replace=False)
        samples = [self._training[int(place)] for place in chosen]
        return [one.tokens[: one.first if order.prompts else self._own_prompt].tolist() for one in samples]


def _held(known: Sequence[Prompt]) -> list[Prompt]:
    """In an order that the contents decide."""
    return sorted(known, key=lambda one: hashlib.sha256(one.text.encode()).digest())


def _plan(order: DistilOrder, parts: Parts) -> TrainingPlan:
    digest = hashlib.sha256()
    for sample in parts.training:
        digest.update(sample.digest)
    said = [
        *(order.teacher, _weights_of(order), _digest_of(order.student), order.on_policy, order.steps),
        *(order.hours, order.rate, order.table_rate, order.batch_tokens, order.top_k, order.seed),
        order.threads,
    ]
    key = hashlib.sha256(f"{said} {digest.hexdigest()}".encode()).hexdigest()
    return TrainingPlan(
        key=key,
        steps=order.steps,
        hours=order.hours,
        matrix_rate=order.rate,
        other_rate=order.table_rate,
        threads=order.threads,
    )


def _before(work: Path, trainer: Trainer, held: Sequence[Batch]) -> np.ndarray:
    """Losses of held-out samples before the first step, kept for a run that goes on."""
    file = work / f"before-{trainer.plan.key[:24]}.npy"
    if not file.is_file():
        losses = trainer.losses_of(held)
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            np.save(out, losses)
        part.replace(file)
    return np.asarray(np.load(file, allow_pickle=False), np.float64)


def _context_of(model: str, order: DistilOrder) -> int:
    with open_checkpoint(resolve(model, offline=order.options.offline)) as checkpoint:
        return find_model(checkpoint.config).config.context


def _weights_of(order: DistilOrder) -> str:
    """A digest of the teacher; of an address its name."""
    if order.endpoint is not None:
        return order.endpoint.model
    with open_checkpoint(resolve(order.teacher, offline=order.options.offline)) as checkpoint:
        return checkpoint.fingerprint


def _digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()
