"""`headrace distil`: a small model learns what a larger one says."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from msgspec import to_builtins
from msgspec.structs import replace

from headrace.bench.quality.card import write_card
from headrace.bench.quality.gate import QualityGate
from headrace.cli.compression import check_out, measured, print_quality, staged
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, progress_bar, status
from headrace.cli.text_input import read_text
from headrace.config.extras import extra_module
from headrace.config.settings import Settings
from headrace.distil.endpoint import TeacherEndpoint
from headrace.distil.heads import HeadReport, head_of, read_label
from headrace.distil.licenses import Rights, check_rights
from headrace.distil.samples import Prompt, read_prompts
from headrace.errors import UsageError
from headrace.llm import LLM
from headrace.loading.loader import load_model, usable_cores
from headrace.loading.model_card import license
from headrace.loading.model_record import ModelRecord, write_record
from headrace.loading.options import engine_options
from headrace.loading.text_assets import served_name
from headrace.models.registry import find_model
from headrace.tasks.few_shot import FittedClassifier
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.resolver import resolve

EXTRA = "train"
LIBRARIES = ("torch", "transformers", "safetensors", "matplotlib")
HELP = """Let a small model, STUDENT, learn what a larger one, TEACHER, says. Needs the extra `train`.

A student that generates learns the probabilities that the teacher gives to each next token of --data, a
text, or of its own answers to --prompts (a prompt a line, or JSON with `prompt` or `messages`, and `answer`
where the right one is known). --on-policy 0.5: half of the batches are what the student itself writes.
TEACHER may be an address of an OpenAI-compatible server, such as https://host/v1: then its answers to
--prompts are learned.

A student that makes vectors (an encoder) learns which lines of --data the teacher finds alike; with --labels
a classifier is fitted to what the teacher calls each prompt.

Nothing is written unless it passes. A teacher is asked questions with known answers first, of --probe or of
the prompts, and refused where it is wrong or inconsistent. A student that is worse than before on held-out
samples, or labels that contradict each other, are refused: exit code 1. A run that was killed goes on with
the same command, to the same weights; --hours or --steps says how long it takes.

\b
Examples:
  headrace distil mini ./mini-small --data manual.txt --out ./healed --hours 0.5
  headrace distil Qwen/Qwen3-4B Qwen/Qwen3-0.6B --prompts asked.jsonl --on-policy 0.5 --out ./student
  headrace distil http://127.0.0.1:8080/v1 ./small --prompts asked.jsonl --probe known.jsonl --out ./student
  headrace distil Qwen/Qwen3-4B embed --labels billing,delivery,other --prompts mails.txt --out ./triage
"""


@takes_settings("threads", "offline")
def command(
    teacher: Annotated[str, typer.Argument(metavar="TEACHER", help="A model, or https://host/v1.")],
    student: Annotated[str, typer.Argument(metavar="STUDENT", help="Folder, OWNER/NAME or bundled model.")],
    out: Annotated[Path, typer.Option(help="The folder to write.", metavar="OUT")],
    data: Annotated[Path | None, typer.Option(help="A text, UTF-8.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Prompts, one a line.")] = None,
    on_policy: Annotated[float, typer.Option(help="Share of batches that the student writes itself.")] = 0.0,
    labels: Annotated[str | None, typer.Option(help="Labels, with commas: fit a classifier.")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="With --labels: texts labeled by people, JSON with text and answer.")
    ] = None,
    probe: Annotated[
        Path | None, typer.Option(help="Questions with right answers, JSON with prompt and answer.")
    ] = None,
    teacher_accuracy: Annotated[
        float, typer.Option(min=0, max=1, help="Share of right answers that a teacher must have; 0: any.")
    ] = 0.75,
    teacher_model: Annotated[str | None, typer.Option(help="The model behind an address.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the address's key.", metavar="NAME")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.001, max=10000, help="How long to train.")] = 1.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Train so many steps instead.")] = None,
    rate: Annotated[float, typer.Option(min=1e-9, max=10, help="Learning rate of matrices (Muon).")] = 0.01,
    window: Annotated[int, typer.Option(min=16, max=32768, help="Tokens of a window of --data.")] = 256,
    batch_tokens: Annotated[int, typer.Option(min=64, max=1 << 20, help="Tokens of a batch.")] = 2048,
    top_k: Annotated[int, typer.Option(min=1, max=4096, help="Tokens kept of each distribution.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, max=32768, help="Most tokens of an answer.")] = 256,
    seed: Annotated[int, typer.Option(min=0, max=1 << 31, help="Order of batches, and samples.")] = 1,
    max_kl: Annotated[
        float | None, typer.Option(min=0.0, help="Write nothing if the KL from the teacher is higher.")
    ] = None,
    i_have_rights: Annotated[
        bool, typer.Option("--i-have-rights", help="The teacher's owner allows this training.")
    ] = False,
    work: Annotated[
        Path | None, typer.Option(help="Folder to keep between runs [default: one beside OUT].")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if headrace made it.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Distil; see HELP."""
    out = out.expanduser().absolute()
    is_address = "://" in teacher
    if not is_address and (teacher_model or api_key_env):
        raise UsageError("--teacher-model and --api-key-env are of an address: TEACHER is a model")
    if data is not None and prompts is not None:
        raise UsageError("give either --data or --prompts", param="data")
    text = None if data is None else read_text(str(data))
    asked = () if prompts is None else tuple(read_prompts(read_text(str(prompts)), prompts.name))
    questions = () if probe is None else tuple(read_prompts(read_text(str(probe)), probe.name))
    if any(one.answer is None for one in questions):
        raise UsageError("each question of --probe needs an `answer`", param="probe")
    for model in (student, *(() if is_address else (teacher,))):
        fetch(model, settings)
    student_path = resolve(student, offline=settings.offline)
    teacher_path = None if is_address else resolve(teacher, offline=settings.offline)
    check_out(out, student_path, *(() if teacher_path is None else (teacher_path,)), force=force)
    rights = _rights(teacher, teacher_path, student_path, allowed=i_have_rights)
    if rights.warning:
        note(f"warning: {rights.warning}")
    is_encoder = _is_encoder(student_path)
    made = {"student": served_name(student, student_path), "teacher": _teacher_name(teacher, teacher_path)}
    made["license"] = rights.license
    key = _key(api_key_env)
    endpoint = TeacherEndpoint(teacher, teacher_model, key) if is_address else None
    if labels is not None:
        known = () if holdout is None else tuple(read_prompts(read_text(str(holdout)), holdout.name))
        report: Any = _labels(teacher, student, labels, asked, known, endpoint, out, made, settings)
        _say({"out": str(out), **to_builtins(report)}, None, json=json)
        return
    if holdout is not None:
        raise UsageError("--holdout goes with --labels", param="holdout")
    threads = settings.threads or usable_cores()
    if is_encoder:
        if text is None or is_address or max_kl is not None or on_policy:
            raise UsageError(
                "an encoder learns vectors of the lines of --data from a model: leave --prompts, --max-kl and"
                " --on-policy out, or give --labels"
            )
        module = extra_module(EXTRA, "headrace.distil.learning.encoders", *LIBRARIES)
        order: Any = module.EncoderOrder(
            teacher=teacher,
            student=student_path,
            options=engine_options(settings),
            texts=tuple(line for line in text.splitlines() if line.strip()),
            threads=threads,
            steps=steps or 300,
            seed=seed,
        )
        with staged(out) as staging:
            report = trained(module.distil_encoder, order, staging)
            write_record(staging, ModelRecord(made=made | {"texts": f"{report.texts:,}"}))
            write_card(staging, out.name, ModelRecord(made=made | {"texts": f"{report.texts:,}"}))
        _say({"out": str(out), **to_builtins(report)}, None, json=json)
        return
    if max_kl is not None and is_address:
        raise UsageError("--max-kl needs the teacher's probabilities: an address gives none", param="max_kl")
    module = extra_module(EXTRA, "headrace.distil.learning.run", *LIBRARIES)
    folder = work or out.with_name(f".{out.name}.distil")
    order = module.DistilOrder(
        teacher=teacher,
        student=student_path,
        options=engine_options(settings),
        work=folder,
        threads=threads,
        endpoint=endpoint,
        data=text,
        prompts=asked,
        probe=questions,
        least_right=teacher_accuracy,
        on_policy=on_policy,
        steps=steps,
        hours=hours,
        rate=rate,
        table_rate=rate / 10,
        window=window,
        batch_tokens=batch_tokens,
        top_k=top_k,
        max_tokens=max_tokens,
        seed=seed,
    )
    order.check()
    gate = QualityGate(
        reference=student if is_address else teacher,
        options=engine_options(settings),
        max_kl=max_kl,
        text=text,
        text_name="" if data is None else data.name,
    )
    with staged(out) as staging:
        report = trained(module.distil, order, staging)
        made |= _lineage(report, data or prompts)
        quality = None
        if report.kind == "sequences":
            write_record(staging, ModelRecord(made=made))
            write_card(staging, out.name, ModelRecord(made=made))
        else:
            quality = measured(staging, out, made, replace(gate, text=None, text_name=""))
    if work is None:
        shutil.rmtree(folder, ignore_errors=True)
    with closing(load_model(str(out), engine_options(settings))):
        pass  # its packed weights are in the cache from now on
    figures = None if quality is None else to_builtins(quality.measured)
    _say({"out": str(out), **to_builtins(report), "quality": figures}, quality, json=json)


def _rights(teacher: str, path: Path | None, student: Path, *, allowed: bool) -> Rights:
    said = None
    if path is not None:
        if path.is_dir():
            said = license(path, None)
        else:
            with open_checkpoint(path) as checkpoint:
                said = license(path, checkpoint.metadata)
    return check_rights(teacher, said, license(student, None), allowed=allowed)


def _teacher_name(teacher: str, path: Path | None) -> str:
    return teacher if path is None else served_name(teacher, path)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"the environment variable {variable} is not set", param="api_key_env")
    return value


def _is_encoder(path: Path) -> bool:
    if not path.is_dir():
        raise UsageError(f"{path.name} is no folder: a student is a folder of safetensors, not GGUF")
    with open_checkpoint(path) as checkpoint:
        return find_model(checkpoint.config).pooling is not None


def trained(run: Any, order: Any, staging: Path) -> Any:
    """What `run` does for an order, with its steps shown in a terminal."""
    with status() as show, progress_bar("training", unit="steps") as progress:

        def step(done: int, total: int, loss: float) -> None:
            del loss
            progress(done, max(total, done))

        return run(order, staging, show, step)


def _lineage(report: Any, source: Path | None) -> dict[str, str]:
    found = {
        "learned": report.kind,
        "data": f"{'' if source is None else source.name}, {report.samples:,} samples",
        "steps": f"{report.steps:,}",
        "held-out loss": f"{report.held_out_before:.4f} before, {report.held_out_after:.4f} after"
        f" ({report.held_out} samples, p of being worse {report.p_worse:.4f})",
    }
    if report.own_samples:
        found["written by the student itself"] = f"{report.own_samples:,} samples"
    if report.probe is not None:
        found["teacher's known answers"] = f"{report.probe.right} of {report.probe.asked} right"
    return found


def _labels(
    teacher: str,
    student: str,
    labels: str,
    prompts: tuple[Prompt, ...],
    known: tuple[Prompt, ...],
    endpoint: TeacherEndpoint | None,
    out: Path,
    made: dict[str, str],
    settings: Settings,
) -> HeadReport:
    names = [name.strip() for name in labels.split(",") if name.strip()]
    if len(set(names)) < 2 or not prompts:
        raise UsageError("--labels needs two labels at least, and --prompts with the texts", param="labels")
    if any(one.answer is None for one in known):
        raise UsageError("each text of --holdout needs an `answer`, its label", param="holdout")
    texts, trusted = [one.text for one in prompts], [one.text for one in known]
    said = _said(teacher, endpoint, [*texts, *trusted], names, settings)
    options: Any = {"threads": settings.threads, "offline": bool(settings.offline)}
    with LLM(student, **options) as llm:
        vectors = np.asarray(llm.embed([*texts, *trusted]), np.float32)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        encoder = llm.model.name
    people = [one.answer or "" for one in known]
    head, report = head_of(
        vectors[: len(texts)],
        said[: len(texts)],
        known=(vectors[len(texts) :], people) if known else None,
        teacher_on_known=said[len(texts) :],
    )
    with staged(out) as staging:
        FittedClassifier(head, encoder).save(staging)
        record = ModelRecord(made=made | {"labels": ", ".join(report.labels), "texts": f"{report.texts:,}"})
        write_record(staging, record)
        write_card(staging, out.name, record)
    return report


def _said(
    teacher: str, endpoint: TeacherEndpoint | None, texts: list[str], names: list[str], settings: Settings
) -> list[str | None]:
    """The teacher's label of each text."""
    asked = [
        f"Which of these labels fits the text best: {', '.join(names)}? Answer with the label only.\n\n{text}"
        for text in texts
    ]
    if endpoint is not None:
        prompts = [Prompt(({"role": "user", "content": text},)) for text in asked]
        return [read_label(one, names) for one in endpoint.answers(prompts, max_tokens=32)]
    options: Any = {"threads": settings.threads, "offline": bool(settings.offline)}
    with LLM(teacher, **options) as llm, progress_bar("labeling", unit="texts") as progress:
        found: list[str | None] = []
        for place, text in enumerate(asked):
            progress(place, len(asked))
            found.append(llm.choose([{"role": "user", "content": text}], names).label)
        return found


def _say(report: dict[str, Any], quality: Any, *, json: bool) -> None:
    if json:
        print_json(report)
        return
    rows = [
        (key.replace("_", " "), f"{value:.4f}" if isinstance(value, float) else str(value))
        for key, value in report.items()
        if key not in ("out", "quality") and value is not None
    ]
    print_table(rows)
    if quality is not None:
        print()
        print_quality(quality)
    note(f"wrote {report['out']}")
