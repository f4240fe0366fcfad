"""`headrace classify`: labels of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.task_model import TASK_SETTINGS, ModelFlag, ServerFlag, TruncateFlag, in_parts, task_model
from headrace.cli.terminal import JsonLinesFlag, print_json_lines, print_rows
from headrace.cli.text_input import FileFlag, read_text, read_texts
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.llm import LLM
from headrace.tasks.label_scores import Classification
from headrace.tasks.zero_shot import MAX_PAIRS

HELP = """Sort texts into labels: a model's own, labels that you name, or labels that you show by examples.

Each TEXT is an argument, a line of a file, or a line that is piped in. The output has a line for each: the
score of the likeliest label, that label, and the text; with --json also the scores of all labels.

With --labels A,B no training is needed: a model of entailment (NLI) says which label follows from the text,
an embedder compares vectors, a decoder such as mini scores the labels as its answer. With --examples FILE, of
lines LABEL, tab, TEXT, a classifier is trained on the vectors of an embedder, in seconds. Without both the
model must be a classifier, whose own labels are used.

\b
Examples:
  headrace classify "unpack an archive" --labels "archives,disk usage,processes"
  headrace classify --examples intents.tsv --file questions.txt --json
  headrace classify --model cardiffnlp/twitter-roberta-base-sentiment-latest "I like it"
"""
EMBEDDER = "embed"


@takes_settings(*TASK_SETTINGS)
def command(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="The texts.")] = None,
    file: FileFlag = None,
    labels: Annotated[
        str | None, typer.Option("--labels", help="Labels of your own, separated by commas.", metavar="A,B")
    ] = None,
    examples: Annotated[
        str | None, typer.Option("--examples", help="A file of lines: LABEL, tab, TEXT.", metavar="FILE")
    ] = None,
    model: ModelFlag = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="With --labels: a text may have several.")
    ] = False,
    truncate: TruncateFlag = False,
    server: ServerFlag = False,
    json: JsonLinesFlag = False,
    *,
    settings: Settings,
) -> None:
    """Classify them; see HELP."""
    wanted = None if labels is None else [label.strip() for label in labels.split(",")]
    _check(wanted, examples, model, multi_label=multi_label, truncate=truncate, server=server)
    given = read_texts(texts, file, "TEXT")
    shown = None if examples is None else read_examples(examples)
    with task_model(settings, model, EMBEDDER, server=server) as one:
        trained = None if shown is None else one.loaded.fit_classifier(shown)

        def here(llm: LLM, part: list[str]) -> list[Classification]:
            if trained is not None:
                return trained.classify(part)
            if wanted is not None:
                return llm.zero_shot(part, wanted, multi_label=multi_label, truncate=truncate)
            return llm.classify(part, truncate=truncate)

        for first, part in in_parts(given, MAX_PAIRS // len(wanted or "1")):
            found = one.ask(
                lambda llm, part=part: here(llm, part),
                "/v1/classify",
                {"input": part, "labels": wanted, "multi_label": multi_label or None, "truncate": truncate},
                _classifications,
            )
            _print(first, part, found, json)


def _check(
    labels: list[str] | None,
    examples: str | None,
    model: str | None,
    *,
    multi_label: bool,
    truncate: bool,
    server: bool,
) -> None:
    """UsageError for flags that contradict each other or have no effect."""
    if labels is not None and examples is not None:
        raise UsageError("--labels and --examples exclude each other: examples name their labels")
    if multi_label and labels is None:
        raise UsageError("--multi-label needs --labels")
    if examples is not None and (server or truncate):
        flag, cause = ("--server", "trains in this process") if server else ("--truncate", "cuts no texts")
        raise UsageError(f"--examples {cause}: drop {flag}")
    if labels is None and examples is None and model is None and not server:
        raise UsageError(
            "there are no labels: give --labels A,B, --examples FILE, or --model with a classifier"
        )


def read_examples(file: str) -> list[tuple[str, str]]:
    """Pairs (text, label) of a file's lines LABEL, tab, TEXT; UsageError for a line that is none."""
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        label, tab, text = line.partition("\t")
        if not line.strip():
            continue
        if not (tab and label.strip() and text.strip()):
            raise UsageError(
                f"{file}, line {number:,}: {line[:80]!r} is not LABEL, tab, TEXT", param="examples"
            )
        pairs.append((text.strip(), label.strip()))
    return pairs


def _classifications(reply: Any) -> list[Classification]:
    return [Classification(it["label"], tuple(it["probs"]), tuple(it["labels"])) for it in reply["data"]]


def _print(first: int, texts: Sequence[str], found: Sequence[Classification], json: bool) -> None:
    pairs = list(zip(texts, found, strict=True))
    if json:
        print_json_lines(
            [
                {
                    "index": index,
                    "label": one.label,
                    "scores": dict(zip(one.labels, one.scores, strict=True)),
                    "text": text,
                }
                for index, (text, one) in enumerate(pairs, first)
            ]
        )
        return
    rows = [(f"{one.score:.4f}", one.label, text) for text, one in pairs]
    print_rows(rows, header=("SCORE", "LABEL", "TEXT"))
