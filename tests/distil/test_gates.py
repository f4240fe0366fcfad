"""What keeps bad teachers, labels and students out: probes, paired tests, noise, licenses, prompts."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from headrace.distil import endpoint
from headrace.distil.answers import recorded
from headrace.distil.endpoint import TeacherEndpoint
from headrace.distil.heads import LabelsRefused, head_of, read_label
from headrace.distil.licenses import TrainingForbidden, check_rights
from headrace.distil.paired_test import StudentWorse, check_better
from headrace.distil.probe import Prompt, WrongTeacher, is_right, lower_bound, probe
from headrace.distil.samples import Sample, read_prompts
from headrace.distil.teacher_data import TeacherData, certain, top_of, toward
from headrace.errors import StoreError, TargetUnreachable, UsageError

KNOWN = [Prompt(({"role": "user", "content": f"q{i}"},), str(i)) for i in range(64)]


def teacher(wrong: set[int], changes: bool = False) -> object:
    asked: list[int] = []

    def answer(prompts: Sequence[Prompt]) -> list[str]:
        asked.append(len(prompts))
        odd = changes and len(asked) > 1
        return [
            "no" if int(one.answer or 0) in wrong else f"{one.answer}{' indeed, or not at all' * odd}."
            for one in prompts
        ]

    return answer


def test_a_right_teacher_passes() -> None:
    found = probe(teacher({3, 9}), KNOWN, source="known")  # type: ignore[arg-type]
    assert (found.asked, found.right, found.same) == (64, 62, 16)


def test_a_consistently_wrong_teacher_is_refused() -> None:
    def wrong(prompts: Sequence[Prompt]) -> list[str]:
        return [f"{int(one.answer or 0) + 1}" for one in prompts]

    with pytest.raises(WrongTeacher, match="the teacher is wrong: 0 of 64"):
        probe(wrong, KNOWN, source="known")
    with pytest.raises(WrongTeacher, match="same answer to all"):
        probe(lambda prompts: ["42"] * len(prompts), KNOWN, source="known")
    with pytest.raises(WrongTeacher, match="general questions of headrace"):
        probe(lambda prompts: [str(len(one.text)) for one in prompts], [], source="known")


def test_an_inconsistent_teacher_is_refused() -> None:
    with pytest.raises(WrongTeacher, match="inconsistent: of 16 questions"):
        probe(teacher(set(), changes=True), KNOWN, source="known")  # type: ignore[arg-type]


def test_a_third_of_wrong_answers_never_passes() -> None:
    for seed in range(20):
        chosen = set(np.random.default_rng(seed).permutation(64)[:19].tolist())
        with pytest.raises(WrongTeacher):
            probe(teacher(chosen), KNOWN, source="known")  # type: ignore[arg-type]


def test_answers_are_compared_by_content() -> None:
    assert is_right(" Paris. ", "paris") and is_right("It is Paris.", "Paris")
    assert not is_right("Parisian", "Paris") and not is_right("", "Paris")
    assert not is_right("Paris " * 40, "Paris")
    assert lower_bound(64, 64) > 0.95 and lower_bound(0, 64) < 1e-9


def clusters(texts: int, labels: int, seed: int) -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(seed)
    centers = random.standard_normal((labels, 48))
    given = random.integers(0, labels, texts)
    vectors = centers[given] + random.standard_normal((texts, 48)) * 0.9
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), [f"label {label}" for label in given]


@pytest.mark.parametrize("labels", [2, 3, 6])
def test_poisoned_labels_never_pass(labels: int) -> None:
    """30 % are flipped; the same labels unflipped pass. People's labels of a few texts do not help them."""
    for seed in range(4):
        vectors, right = clusters(300, labels, seed)
        names = sorted(set(right))
        random = np.random.default_rng(seed + 100)
        flipped = list(right)
        for place in random.permutation(300)[:90]:
            flipped[place] = str(random.choice([name for name in names if name != right[place]]))
        known_vectors, known = vectors[:60], right[:60]
        head, report = head_of(
            vectors[60:], right[60:], known=(known_vectors, known), teacher_on_known=right[:60]
        )
        assert report.noise < 0.1 and report.held_out_right >= 55 and len(head.labels) == labels
        with pytest.raises(LabelsRefused, match="contradicted by heads"):
            head_of(vectors, flipped)
        with pytest.raises(LabelsRefused):
            head_of(vectors[60:], flipped[60:], known=(known_vectors, known), teacher_on_known=flipped[:60])


def test_heads_that_lose_against_people() -> None:
    vectors, right = clusters(300, 3, 1)
    shuffled = list(np.random.default_rng(5).permutation(right[200:]))
    with pytest.raises(LabelsRefused, match="McNemar"):
        head_of(vectors[:200], right[:200], known=(vectors[200:], shuffled), teacher_on_known=shuffled)
    with pytest.raises(LabelsRefused, match="named none of the labels for 40 of 200"):
        head_of(vectors[:200], [None] * 40 + list(right[40:200]))
    with pytest.raises(UsageError, match="each of at least two labels needs"):
        head_of(vectors[:9], right[:9])


def test_labels_are_read_out_of_answers() -> None:
    labels = ("billing", "late delivery", "delivery")
    assert read_label("Billing.", labels) == "billing"
    assert read_label("The label is billing", labels) == "billing"
    assert read_label("late delivery", labels) == "late delivery"
    assert read_label("billing or delivery", labels) is None and read_label("?", labels) is None


def test_a_student_that_lost_is_refused() -> None:
    random = np.random.default_rng(3)
    before = random.random(32) + 1
    worse, better = check_better(before, before - 0.1 - random.random(32) * 0.1)
    assert worse > 0.99 and better < 0.01
    with pytest.raises(StudentWorse, match="is worse than it was"):
        check_better(before, before + random.random(32) * 0.1)
    with pytest.raises(StudentWorse, match="no numbers"):
        check_better(before, before * np.nan)


@pytest.mark.parametrize(
    ("teacher", "license", "refused"),
    [
        ("a/b", "apache-2.0", False),
        ("a/b", "llama3.2", False),
        ("a/b", None, False),
        ("a/b", "llama2", True),
        ("a/b", "llama3", True),
        ("a/b", "cc-by-nc-nd-4.0", True),
        ("a/b", "acme-no-training", True),
        ("https://api.openai.com/v1", None, True),
        ("https://api.openai.com.evil.example/v1", None, False),
        ("http://127.0.0.1:8080/v1", None, False),
    ],
)
def test_licenses(teacher: str, license: str | None, refused: bool) -> None:
    if refused:
        with pytest.raises(TrainingForbidden, match=r"restrict|does not allow"):
            check_rights(teacher, license, "mit", allowed=False)
    rights = check_rights(teacher, license, "mit", allowed=refused)
    assert ("--i-have-rights" in rights.license) == refused and rights.license.startswith("mit (weights)")
    assert bool(rights.warning) == (license is None)


def test_prompts_are_read_by_the_line() -> None:
    said = [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]
    text = 'plain words\n\n{"prompt": "a", "answer": "b"}\n' + json.dumps({"messages": said})
    assert [(one.text, one.answer) for one in read_prompts(text, "x")] == [
        ("plain words", None),
        ("a", "b"),
        ("c", "d"),
    ]
    for bad in (
        "{",
        "{}",
        '{"prompt": 3}',
        '{"messages": []}',
        '{"messages": [3]}',
        '{"prompt": "a", "answer": 1}',
    ):
        with pytest.raises(UsageError, match="x, line 2"):
            read_prompts(f"fine\n{bad}", "x")
    with pytest.raises(UsageError, match="has no prompts"):
        read_prompts("\n \n", "x")


def test_what_teachers_said_is_kept_by_content(tmp_path: Path) -> None:
    calls: list[int] = []

    def compute(sample: Sample) -> object:
        calls.append(len(sample.tokens))
        logits = np.random.default_rng(int(sample.tokens.sum())).standard_normal((sample.learned, 50))
        return top_of(logits - np.log(np.exp(logits).sum(1, keepdims=True)), 8)

    samples = [Sample(np.arange(length, dtype=np.int32), 1) for length in (5, 9)]
    first = TeacherData(tmp_path, "t", compute, k=8).of(samples)  # type: ignore[arg-type]
    again = TeacherData(tmp_path, "t", None, k=8).of(samples)
    assert len(calls) == 2 and [one.ids.shape for one in again] == [(4, 8), (8, 8)]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        mass = np.exp(other.logs.astype(float)).sum(1) + np.exp(other.tail.astype(float))
        np.testing.assert_allclose(mass, 1, atol=4e-3)
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])  # half written, or damaged
    TeacherData(tmp_path, "t", compute, k=8).of(samples)  # type: ignore[arg-type]
    TeacherData(tmp_path, "another", compute, k=8).of(samples)  # type: ignore[arg-type]
    assert len(calls) == 6
    with pytest.raises(StoreError, match="free some space"):
        full = TeacherData(tmp_path / "full", "t", compute, k=8)  # type: ignore[arg-type]
        (tmp_path / "full").rmdir()
        full.of(samples)


def test_what_was_said_counts_beside_what_is_likely() -> None:
    """Half of it, also where the teacher finds it unlikely; a correction counts alone."""
    random = np.random.default_rng(1)
    logits = random.normal(size=(5, 40)) * 3
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    top, said = top_of(logs, 8), np.array([*logs.argmax(1)[:3], *logs.argmin(1)[3:]], np.int32)
    found = toward(top, said, 0.5)
    for row, token in enumerate(said):
        chances = dict(zip(found.ids[row].tolist(), np.exp(found.logs[row].astype(float)), strict=True))
        assert chances[int(token)] == pytest.approx(0.5 + 0.5 * np.exp(logs[row, token]), abs=2e-3)
        assert sum(chances.values()) + np.exp(float(found.tail[row])) == pytest.approx(1, abs=5e-3)
        assert max(chances, key=lambda one: chances[one]) == token
    alone = certain(said, 40, 8)
    assert alone.ids[:, 0].tolist() == said.tolist() and not alone.logs[:, 0].any()
    assert all(len(set(row)) == 8 and max(row) < 40 for row in alone.ids.tolist())
    assert (alone.logs[:, 1:] < -15).all()


def test_a_half_written_line_is_made_again(tmp_path: Path) -> None:
    file, asked = tmp_path / "x.jsonl", list[int]()

    def make(places: range) -> list[str]:
        asked.extend(places)
        return [str(place) for place in places]

    file.write_text("0\n1\n2 but ha")
    assert recorded(file, 6, make, at_once=3) == [str(place) for place in range(6)]
    assert asked == [2, 3, 4, 5] and file.read_text() == "".join(f"{place}\n" for place in range(6))


class _Odd(BaseHTTPRequestHandler):
    replies: ClassVar[list[tuple[int, bytes]]] = []
    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.seen.append(self.headers.get("authorization", ""))
        status, body = self.replies[min(len(self.seen) - 1, len(self.replies) - 1)]
        self.send_response(status)
        if status == 302:
            self.send_header("location", f"http://127.0.0.1:{self.server.server_address[1]}/stolen")
        self.send_header("retry-after", "0")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        del args


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([(200, b"<html>")], "no JSON"),
        ([(200, b"[1]")], "no object"),
        ([(200, b'{"choices": []}')], "without an answer's text"),
        ([(401, b"who are you")], "status 401"),
        ([(302, b"")], "status 302"),
        ([(200, b" " * (5 << 20))], "more than"),
        ([(503, b""), (200, json.dumps({"choices": [{"message": {"content": "fine"}}]}).encode())], ""),
    ],
)
def test_odd_addresses(replies: list[tuple[int, bytes]], message: str) -> None:
    _Odd.replies, _Odd.seen = replies, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Odd)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        endpoint = TeacherEndpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", "m", "secret")
        if message:
            with pytest.raises(TargetUnreachable, match=message):
                endpoint.answers(KNOWN[:1], max_tokens=4)
        else:
            assert endpoint.answers(KNOWN[:1], max_tokens=4) == ["fine"]
        assert len(_Odd.seen) == len(replies)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(UsageError, match="is no address"):
        TeacherEndpoint("file:///etc/passwd", "m", None)


@contextmanager
def sending(first: bytes, rest: bytes = b"") -> Iterator[str]:
    """The address of a server that sends these bytes, and then `rest` again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, suppress(OSError):
                        client.recv(65536)
                        client.sendall(first)
                        while rest:
                            client.sendall(rest)
                            time.sleep(0.01)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("first", "rest", "message"),
    [
        (b"HTTP/1.1 429 X\r\nRetry-After: nan\r\nContent-Length: 0\r\n\r\n", b"", "status 429"),
        (b"GARBAGE\r\n\r\n", b"", "no answer: GARBAGE"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", b"", "header line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ", "takes more than"),
        (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"", "status 500: ''"),
    ],
)
def test_an_address_that_speaks_no_http_or_never_ends_is_named(
    monkeypatch: pytest.MonkeyPatch, first: bytes, rest: bytes, message: str
) -> None:
    monkeypatch.setattr(endpoint, "TRIES", 2)
    monkeypatch.setattr(endpoint, "MAX_WAIT_S", 0.0)
    monkeypatch.setattr(endpoint, "MAX_REPLY_S", 0.2)
    with sending(first, rest) as address, pytest.raises(TargetUnreachable, match=message):
        TeacherEndpoint(address, "big", None).answers(KNOWN[:1], max_tokens=4)


def test_a_list_of_models_that_is_none_is_refused() -> None:
    body = b'{"data": 5}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with sending(head + body) as address, pytest.raises(UsageError, match="has 0 models"):
        TeacherEndpoint(address, None, None)


def test_separators_of_unicode_end_no_line_of_prompts() -> None:
    found = read_prompts('{"prompt": "one\u2028two\x85three"}\r\nfour', "asked")
    assert [one.text for one in found] == ["one\u2028two\x85three", "four"]
