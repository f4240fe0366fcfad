"""`headrace embed`, `rerank`, `classify`, `entities`, `redact`: in this process and by a
server, for people and for programs."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invocation import Headrace, Outcome
from test_commands import start

from head_models import head_model
from headrace.cli.task_model import in_parts
from headrace.cli.text_input import read_texts
from headrace.errors import UsageError

ASKED = "unpack an archive"
DOCUMENTS = ("du --human-readable", "tar --extract --file a.tar")
NAMED = "My name is John Miller and I live in Berlin"
COMMANDS = {
    "embed": ("embed", ASKED, "show disk usage"),
    "rerank": ("rerank", ASKED, *DOCUMENTS),
    "classify": ("classify", ASKED, "--labels", "archives,disk usage"),
    "entities": ("entities", "letter.txt", "--labels", "person,location"),
    "redact": ("redact", "letter.txt", "--model", "tagger"),
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running server with the bundled models."""
    home = str(tmp_path_factory.mktemp("home"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with start({"HOME": home, "PATH": ""}, "serve", "--port", "0", **pipes) as process:
        assert process.stdout is not None
        found = re.search(rb":(\d+)\n", process.stdout.readline())
        assert found is not None
        yield found[1].decode()
        process.terminate()


@pytest.fixture
def letter(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text(NAMED)


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.usefixtures("letter")
def test_a_server_gives_the_same(inside: Callable[..., Outcome], arguments: list[str], port: str) -> None:
    here = inside(*arguments, "--json")
    there = inside(*arguments, "--json", "--server", "--port", port)
    assert here.code == there.code == 0, (here, there)
    assert here.stdout == there.stdout
    plain = inside(*arguments)
    assert plain.stdout == inside(*arguments, "--server", "--port", port).stdout != here.stdout


def test_what_they_print(inside: Callable[..., Outcome]) -> None:
    first, second = inside(*COMMANDS["rerank"]).stdout.splitlines()
    assert first.split("\t")[1:] == ["1", DOCUMENTS[1]] and second.split("\t")[1:] == ["0", DOCUMENTS[0]]
    [best] = map(json.loads, inside(*COMMANDS["rerank"], "--top-n", "1", "--json").stdout.splitlines())
    assert (best["index"], best["text"]) == (1, DOCUMENTS[1])
    score, label, text = inside(*COMMANDS["classify"]).stdout.rstrip("\n").split("\t")
    assert float(score) > 0.5 and (label, text) == ("archives", ASKED)
    lines = [json.loads(line) for line in inside(*COMMANDS["embed"], "--json").stdout.splitlines()]
    assert [(line["index"], line["text"]) for line in lines] == [(0, ASKED), (1, "show disk usage")]
    numbers = [list(map(float, line.split("\t"))) for line in inside(*COMMANDS["embed"]).stdout.splitlines()]
    assert numbers == [pytest.approx(line["embedding"], abs=1e-7) for line in lines]


def test_an_embedder_that_stands_in_is_named(headrace: Headrace) -> None:
    result = headrace(*COMMANDS["rerank"])
    assert result.stderr == b"warning: embed is an embedder: the scores are cosines of its vectors\n"
    assert result.stdout.startswith(b"0.")


def test_a_decoder_chooses(inside: Callable[..., Outcome]) -> None:
    line = inside(*COMMANDS["classify"], "--model", "mini", "--json").stdout
    assert sum(json.loads(line)["scores"].values()) == pytest.approx(1)


def test_examples_make_a_classifier(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "intents.tsv").write_text(
        "archive\tunzip files\narchive\tpack a folder\n\ndisk\tshow disk usage\ndisk\thow full is it\n"
    )
    (tmp_path / "asked.txt").write_text(f"{ASKED}\n\nfree space on the disk\n")
    result = inside("classify", "--examples", "intents.tsv", "--file", "asked.txt", "--json")
    assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["archive", "disk"]
    (tmp_path / "intents.tsv").write_text("archive unzip the files\n")
    wrong = inside("classify", "--examples", "intents.tsv", ASKED)
    assert (
        wrong.code == 2 and "intents.tsv, line 1: 'archive unzip the files' is not LABEL, tab" in wrong.stderr
    )


def test_a_classifiers_own_labels(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = head_model(tmp_path, "heads/bert_classify")
    line = inside("classify", "hello", "--model", str(folder), "--json").stdout
    labels = list(json.loads((folder / "config.json").read_text())["id2label"].values())
    assert list(json.loads(line)["scores"]) == labels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("classify", "x"), "there are no labels: give --labels A,B, --examples FILE, or --model"),
        (("classify", "x", "--labels", "a", "--examples", "f"), "exclude each other"),
        (("classify", "x", "--multi-label", "--model", "mini"), "--multi-label needs --labels"),
        (
            ("classify", "x", "--examples", "f", "--server"),
            "--examples trains in this process: drop --server",
        ),
        (("classify", "x", "--examples", "f", "--truncate"), "drop --truncate"),
        (("classify", "x", "--examples", "nowhere.tsv"), "nowhere.tsv cannot be read"),
        (("embed", "x", "--server", "--threads", "1"), "--threads has no effect with --server: drop it"),
        (("embed", "x", "--file", "f"), "both TEXT and --file are given"),
        (("embed", "--file", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("embed",), "stdin is empty: give TEXT, --file FILE, or pipe lines in"),
        (("rerank",), "QUERY is missing"),
        (("rerank", "x"), "stdin is empty: give DOCUMENT, --file FILE, or pipe lines in"),
        (("rerank", "x", "y", "--top-n", "0"), "--top-n"),
        (
            ("run", "embed", "hello"),
            "embed generates no text, it can embed texts: use `headrace embed --model",
        ),
        (("run", "tagger", "hello"), "use `headrace entities --model tagger`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage(inside: Callable[..., Outcome], arguments: tuple[str, ...], message: str) -> None:
    result = inside(*arguments)
    assert result.code == 2, result
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("classify", "x", "--model", "mini"),
            "mini cannot classify texts, it can generate text: name a model",
        ),
        (("embed", "x", "--model", "tagger"), "tagger cannot embed texts, it can find entities by labels"),
        (("embed", "x", "--dimensions", "100000"), "dimensions"),
        (("embed", "x", "word " * 600), "text 1 has 602 tokens, the limit is 512"),
        (("classify", "x", "--labels", "a,,b"), "labels has an empty label"),
        (("embed", "x", "--prompt-name", "query"), "prompt_name"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_model_that_cannot(
    inside: Callable[..., Outcome], arguments: tuple[str, ...], message: str, port: str
) -> None:
    here, there = inside(*arguments), inside(*arguments, "--server", "--port", port)
    assert here.code == there.code == 1, (here, there)
    assert message in here.stderr and message in there.stderr


def test_nothing_found_is_said(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("It rains.")
    result = inside(*COMMANDS["entities"])
    assert (result.stdout, result.stderr) == (
        "",
        "nothing was found: try other labels, or a lower --threshold\n",
    )
    assert inside(*COMMANDS["entities"], "--json").stdout == "[]\n"


def test_lines_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\n \ntwo\r\n"))
    assert read_texts(None, None, "TEXT") == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    with pytest.raises(UsageError, match="stdin has no text: give TEXT"):
        read_texts([], "-", "TEXT")


@pytest.mark.usefixtures("letter")
def test_the_name_of_a_file_is_no_text(inside: Callable[..., Outcome]) -> None:
    found = inside("embed", "letter.txt", "some text")
    assert found.code == 0 and found.stdout.count("\n") == 2
    assert (
        "letter.txt is a file, its name is taken as TEXT: --file letter.txt reads its lines" in found.stderr
    )
    assert "some text" not in found.stderr


def test_many_texts_go_in_parts() -> None:
    texts = [str(number) for number in range(5000)]
    assert [(first, len(part)) for first, part in in_parts(texts)] == [(0, 2048), (2048, 2048), (4096, 904)]
    assert [len(part) for _, part in in_parts(texts[:5], 2)] == [2, 2, 1]


def test_a_table_on_a_terminal(inside: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.embed.sys.stdout.isatty", lambda: True, raising=False)
    assert re.match(r"VECTOR +TEXT\n( *-?0\.\d{4}){4} … 384 numbers +unpack", inside("embed", ASKED).stdout)
    assert re.match(r"SCORE +INDEX +DOCUMENT\n0\.\d{4} +1 +tar", inside(*COMMANDS["rerank"]).stdout)


def test_the_remedy_names_the_folder_that_was_given(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = str(head_model(tmp_path, "heads/bert_classify"))
    result = inside("run", folder, "hello")
    assert result.code == 2 and f"use `headrace classify --model {folder}`" in result.stderr, result
