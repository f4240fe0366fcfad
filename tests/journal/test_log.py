"""The journal's log: what was written is read again, and damage costs only what follows it."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.journal.folder import JournalInUse
from headrace.journal.frames import FILE_BYTES, MAX_NUMBER, read_cipher, record, scan, tag_of
from headrace.journal.known_requests import in_order, known_requests
from headrace.journal.log import Log
from headrace.journal.reader import JournalUnwritable, LogReader, RecordKind
from headrace.journal.records import OpenedRequest, encode
from headrace.journal.segment import Record, open_segment
from journal.faults import full, small_disk


def written(log: Log, number: int, body: bytes, *, ends: bool = True) -> None:
    log.append(RecordKind.OPENED, number, tag_of(f"req_{number}"), body)
    log.append(RecordKind.EVENTS, number, 0, b"tokens of " + body)
    if ends:
        log.append(RecordKind.ENDED, number, tag_of(f"reply_{number}"), b"reply to " + body)
    log.write()


def all_records(folder: Path) -> list[Record]:
    log = Log(folder)
    try:
        return [one for records in log.read(range(100)).values() for one in records]
    finally:
        log.close()


def test_records_come_back_after_the_process_is_gone(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"first")
    written(log, 2, b"second", ends=False)
    log.close()
    log = Log(tmp_path)
    assert log.unfinished() == [2]
    assert log.ended() == [1]
    assert log.find(tag_of("req_1")) == log.find(tag_of("reply_1")) == [1]
    assert [one.payload for one in log.read([1])[1]] == [b"first", b"tokens of first", b"reply to first"]
    assert log.next_number == 3
    assert not log.damages
    log.close()


@pytest.fixture(scope="module")
def whole() -> tuple[dict[str, bytes], list[Record]]:
    """The files of a log of several files, and its records."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Log(Path(folder), segment_bytes=2**16)
        for number in range(1, 9):
            written(log, number, random.Random(number).randbytes(17_000), ends=number % 3 != 0)
        for number in range(9, 12):
            written(log, number, b"short")
        log.care()
        log.close()
        files = {
            one.name: one.read_bytes()
            for one in Path(folder).iterdir()
            if one.suffix in (".log", ".index") and one.stat().st_size
        }
        return files, all_records(Path(folder))


@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_leaves_the_longest_good_prefix(
    whole: tuple[dict[str, bytes], list[Record]], data: st.DataObject
) -> None:
    """Of every file: the records before the damage are all there, nothing else is, and the rest is named."""
    files, records = whole
    name = data.draw(st.sampled_from(sorted(files)))
    good = files[name]
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        bad = good[:place]
    else:
        bad = bytearray(good)
        bad[place] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for other, content in files.items():
            (Path(folder) / other).write_bytes(content)
        (Path(folder) / name).write_bytes(bad)
        log = Log(Path(folder))
        log.verify()
        found = [one for part in log.read(range(100)).values() for one in part]
        named = list(log.damages)
        log.close()
        before = [one for one in scan(good).columns.at if one < place] if name.endswith(".log") else []
        lost = len(records) - len(found)
        assert all(one in records for one in found)
        if name.endswith(".index"):
            assert found == records
            return
        whole_records = [at for at in before if _end(good, at) <= place]
        assert lost == len(scan(good).columns) - len(whole_records)
        cut_at_an_end = len(bad) < len(good) and place in {FILE_BYTES, *(_end(good, at) for at in before)}
        if not cut_at_an_end and place:
            [damage] = named
            assert (Path(folder) / damage.set_aside).read_bytes() == bytes(bad[damage.good_bytes :])
        assert all_records(Path(folder)) == found  # and again


def _end(data: bytes, at: int) -> int:
    columns = scan(data).columns
    ends = [*columns.at, len(data)]
    return ends[list(columns.at).index(at) + 1]


def test_a_folder_in_use_is_refused_with_the_process_id(tmp_path: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom headrace.journal.log import Log\n"
    code += "log = Log(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(JournalInUse, match=f"process {process.pid}:"):
            Log(tmp_path)
        reader = LogReader(tmp_path)
        assert reader.unfinished() == []
    finally:
        process.kill()
        process.communicate()
    Log(tmp_path).close()


@contextmanager
def full_disk(after_bytes: int) -> Generator[None]:
    """No file may be larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_no_record_before_and_leaves_no_half(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"kept")
    with full_disk(5000), pytest.raises(JournalUnwritable, match="takes no records") as caught:
        written(log, 2, b"x" * 10_000)
    assert caught.value.status == 507
    written(log, 3, b"after")
    log.close()
    log = Log(tmp_path)
    assert not log.damages
    assert log.ended() == [1, 3]
    log.close()


def test_deleted_requests_are_gone_from_every_file(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"SECRET WORDS")
    written(log, 2, b"other words")
    (tmp_path / "000000999999-0.damaged").write_bytes(b"half of SECRET WORDS")
    (tmp_path / "000000999999.log.part").write_bytes(b"SECRET WORDS of a process that was killed")
    log.close()
    log = Log(tmp_path)
    log.forget([1])
    assert log.find(tag_of("req_1")) == []
    log.care()
    for path in tmp_path.iterdir():
        assert b"SECRET" not in path.read_bytes(), path
    assert next(one.payload for one in log.read([2])[2]) == b"other words"
    log.close()
    log = Log(tmp_path)
    assert log.ended() == [2]
    log.close()


def test_a_budget_drops_the_oldest_and_no_request_that_runs(tmp_path: Path) -> None:
    log = Log(tmp_path, budget_bytes=2**19, segment_bytes=2**16)
    log.append(RecordKind.SERVER, 0, 0, b"what the server computes with")
    written(log, 1, b"runs on and on", ends=False)
    for number in range(2, 200):
        written(log, number, random.Random(number).randbytes(10_000))
        if log.needs_care:
            log.care()
    log.care()
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 2**19 + 2**17
    assert log.unfinished() == [1]
    assert [one.payload for one in log.read([1])[1]] == [b"runs on and on", b"tokens of runs on and on"]
    assert log.find(tag_of("req_2")) == [] and log.find(tag_of("req_199")) == [199]
    assert [one.payload for one in log.read([0])[0]] == [b"what the server computes with"]
    log.close()
    log = Log(tmp_path)
    assert log.unfinished() == [1]
    log.close()


def test_what_runs_keeps_its_order_whatever_is_dropped(tmp_path: Path) -> None:
    """Requests that never end, whose records are more than the budget."""
    log = Log(tmp_path, budget_bytes=2**18)
    for number in range(1, 6):
        log.append(RecordKind.OPENED, number, 0, b"body")
    for place in range(60):
        for number in range(1, 6):
            log.append(RecordKind.EVENTS, number, place, bytes([place]) * 2000)
        log.write()
        if log.needs_care:
            log.care()
    log.close()
    for _ in range(2):
        log = Log(tmp_path, budget_bytes=2**18)
        log.care()
        assert log.unfinished() == [1, 2, 3, 4, 5]
        for records in log.read(range(1, 6)).values():
            assert [one.tag for one in records if one.kind == RecordKind.EVENTS] == list(range(60))
        log.close()
    assert len(list(tmp_path.glob("*.log"))) <= 6


def test_tokens_of_ended_requests_are_dropped(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=2**16)
    log.append(RecordKind.OPENED, 1, 0, b"body")
    log.append(RecordKind.EVENTS, 1, 0, b"t" * 70_000)
    log.append(RecordKind.ENDED, 1, 0, b"reply")
    log.write()
    log.care()
    assert log.size_bytes < 1000
    assert [one.payload for one in log.read([1])[1]] == [b"body", b"reply"]
    log.close()


def test_an_encrypted_journal_opens_with_its_key_alone(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    key, other, folder = tmp_path / "key", tmp_path / "other", tmp_path / "journal"
    key.write_text("0123456789abcdef" * 2)
    other.write_text("fedcba9876543210" * 2)
    log = Log(folder, cipher=read_cipher(key))
    written(log, 1, b"SECRET WORDS")
    log.close()
    assert all(b"SECRET" not in one.read_bytes() for one in folder.iterdir())
    with pytest.raises(UsageError, match="no key is given"):
        Log(folder)
    with pytest.raises(UsageError, match="another key"):
        Log(folder, cipher=read_cipher(other))
    log = Log(folder, cipher=read_cipher(key))
    assert next(one.payload for one in log.read([1])[1]) == b"SECRET WORDS"
    log.close()
    short = tmp_path / "short"
    short.write_text("abc")
    with pytest.raises(UsageError, match="at least 16"):
        read_cipher(short)


def test_a_record_has_one_form() -> None:
    assert record(1, 2, 3, b"abc").hex() == "03000000" + record(1, 2, 3, b"abc")[4:8].hex() + (
        "01" + "0200000000000000" + "0300000000000000" + "616263"
    )


def test_other_files_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_bytes(b"a log of somebody else")
    (tmp_path / "notes.damaged").write_bytes(b"something else")
    (tmp_path / "000009999999-copy.log").write_bytes(b"a copy that somebody keeps")
    (tmp_path / "000009999999-copy.log.part").write_bytes(b"half of it")
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    log = Log(tmp_path)
    written(log, 1, b"body")
    log.forget([1])
    log.care()
    log.close()
    assert not log.damages
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_folder_that_others_prepare_is_refused(tmp_path: Path) -> None:
    folder, victim = tmp_path / "journal", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    (folder / "lock").symlink_to(victim)
    with pytest.raises(JournalUnwritable):
        Log(folder)
    assert victim.read_text() == "precious"
    (folder / "lock").unlink()
    (folder / "000001000000.log").symlink_to(victim)
    with pytest.raises(JournalUnwritable, match="is no file"):
        Log(folder)
    (folder / "000001000000.log").unlink()
    os.mkfifo(folder / "000001000000.log")
    with pytest.raises(JournalUnwritable, match="is no file"):
        Log(folder)
    (folder / "000001000000.log").unlink()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="others may write"):
        Log(folder)
    folder.chmod(0o700)
    Log(folder).close()


def test_what_is_too_old_goes_also_from_the_file_that_grows(tmp_path: Path) -> None:
    log = Log(tmp_path, max_age_s=800.0)
    written(log, 1, b"old")
    written(log, 2, b"runs", ends=False)
    log.close()
    for path in tmp_path.glob("*.log"):
        os.utime(path, (time.time() - 900, time.time() - 900))
    log = Log(tmp_path, max_age_s=800.0)
    written(log, 3, b"new")
    log.begin_new_file_if_old()  # which has records of today, too: they stay until it is old as a whole
    for path in sorted(tmp_path.glob("*.log"))[:-1]:
        os.utime(path, (time.time() - 900, time.time() - 900))
    log.care()
    assert log.find(tag_of("req_1")) == []
    assert log.unfinished() == [2]
    log.close()


def test_a_full_disk_takes_what_runs_from_a_reserve(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 4 * 2**20) as mounted:
        if not mounted:
            pytest.skip("this process may not mount a file system")
        log = Log(folder, budget_bytes=2**24)
        written(log, 1, b"before")
        with full(folder):
            written(log, 2, b"x" * 100_000)
            assert not log.has_reserve and not log.take_reserve()
            with pytest.raises(JournalUnwritable, match="No space left"):
                written(log, 3, b"x" * 2**21)
        assert log.take_reserve()
        written(log, 4, b"after")
        log.close()
        log = Log(folder)
        assert log.ended() == [1, 2, 4] and not log.damages
        log.close()


def test_it_is_read_while_it_grows(tmp_path: Path) -> None:
    log, problems = Log(tmp_path), list[BaseException]()
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                assert len(log.read(log.unfinished())) <= 3000
                log.find(tag_of("req_7"))
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 3000):
        written(log, number, b"body", ends=number % 2 == 0)
    done.set()
    reader.join()
    log.close()
    assert not problems


@pytest.mark.parametrize("kind", ["own", "of another process"])
def test_files_that_are_written_anew_while_they_are_read_give_no_other_record(
    tmp_path: Path, kind: str
) -> None:
    """The records have one size: what is deleted leaves others in its place."""
    log, problems = Log(tmp_path, segment_bytes=2**16), list[object]()
    for number in range(1, 301):
        log.append(RecordKind.OPENED, number, tag_of(f"req_{number}"), b"%d." % number * 40)
    log.write()
    last, done = 300, threading.Event()

    def read() -> None:
        reader = log if kind == "own" else LogReader(tmp_path)
        try:
            while not done.is_set():
                for number, records in reader.read(range(200, last + 1)).items():
                    if [one.payload for one in records] != [b"%d." % number * 40]:
                        problems.append((number, records))
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(1, 150):
        log.forget([number])
        log.care()
    done.set()
    thread.join()
    log.close()
    assert not problems, problems[0]


def test_a_journal_of_another_release_is_refused_and_left(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"body")
    log.close()
    [path] = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[16] += 1
    data[FILE_BYTES - 4 : FILE_BYTES] = crc32(data[: FILE_BYTES - 4]).to_bytes(4, "little")
    path.write_bytes(data)
    for opens in (Log, LogReader):
        with pytest.raises(UsageError, match="written in format 2"):
            opens(tmp_path)
    assert path.read_bytes() == data and not [*tmp_path.glob("*.damaged")]


def test_a_request_that_cannot_be_read_hinders_no_other(tmp_path: Path) -> None:
    """Such as one that another release has written."""
    log = Log(tmp_path)
    good = encode(OpenedRequest(request_id="r", nonce="0" * 32))
    for number, payload in ((1, good), (2, b"\x80"), (3, b"\xc1"), (4, good)):
        log.append(RecordKind.OPENED, number, 0, payload)
    log.append(RecordKind.EVENTS, 4, 0, b"nonsense")
    log.append(RecordKind.OPENED, 5, 0, good)
    log.append(RecordKind.TIMED, 5, 0, b"no number")
    log.append(RecordKind.OPENED, 6, 0, good)
    log.write()
    assert [one.number for one in known_requests(log, log.unfinished())] == [1, 6]
    log.close()


def test_replies_go_with_their_requests(tmp_path: Path) -> None:
    """What remained of a request that was dropped could not be deleted any more."""
    log = Log(tmp_path, budget_bytes=2**18, segment_bytes=2**16)
    long = [1, 2]
    for number in long:
        log.append(RecordKind.OPENED, number, tag_of(f"req_{number}"), b"LONG QUESTION")
    for number in range(3, 40):
        written(log, number, random.Random(number).randbytes(10_000))
        if number in (20, 38):
            log.append(RecordKind.ENDED, long[number == 38], tag_of("reply"), b"LONG ANSWER")
        log.care()
    ended = log.ended()
    files = {one.name: one.read_bytes() for one in tmp_path.glob("*.log")}
    assert sum(data.count(b"LONG ANSWER") for data in files.values()) == len({*long} & {*ended})
    assert sum(data.count(b"LONG QUESTION") for data in files.values()) == len({*long} & {*ended})
    log.forget([2])
    log.care()
    assert not any(b"LONG ANSWER" in one.read_bytes() for one in tmp_path.glob("*.log"))
    log.close()


def test_events_after_a_gap_are_not_taken_for_new_ones() -> None:
    """A file in the middle was damaged: the request goes on from what is before that, and records anew."""

    def event(tag: int) -> Record:
        return Record(RecordKind.EVENTS, 1, tag, b"")

    old = [event(0), event(1), event(4), event(5)]  # 2 and 3 are lost
    found, has_gap = in_order(old)
    assert ([one.tag for one in found], has_gap) == ([0, 1], True)
    new = [
        Record(RecordKind.RESTARTED, 1, 2, b""),
        *(Record(RecordKind.EVENTS, 1, n, b"new") for n in (2, 3)),
    ]
    for records in ([*old, *new], [*old, *new, *old, *new]):
        found, has_gap = in_order(records)
        assert [(one.tag, one.payload) for one in found] == [(0, b""), (1, b""), (2, b"new"), (3, b"new")]
        assert not has_gap


def test_deleting_again_and_again_leaves_few_files(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=2**20)
    for number in range(1, 101):
        written(log, 2 * number, b"kept")
        written(log, 2 * number + 1, b"deleted")
        log.forget([2 * number + 1])
        log.care()
    assert len(list(tmp_path.glob("*.log"))) < 25
    kept = list(range(2, 201, 2))
    assert log.ended() == kept
    before = log.read(kept)
    log.close()
    assert not any(b"deleted" in file.read_bytes() for file in tmp_path.iterdir())
    log = Log(tmp_path)
    assert (log.ended(), log.damages) == (kept, [])
    assert log.read(kept) == before
    log.close()


def test_what_is_not_to_be_stored_leaves_the_files(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"not to be stored", ends=False)
    written(log, 2, b"other")
    log.append(RecordKind.FORGOTTEN, 1, 0, b"")
    log.write()
    for _ in range(2):
        log.begin_new_file_if_old()
        log.care()
    assert not any(b"not to be stored" in file.read_bytes() for file in tmp_path.iterdir())
    assert log.ended() == [2]
    assert len(list(tmp_path.glob("*.log"))) == 2
    log.close()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_reserve_or_an_index_that_is_no_file_stops_nothing(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "reserve")
    log = Log(tmp_path, segment_bytes=2**16)
    written(log, 1, bytes(70_000))
    written(log, 2, b"short")
    log.care()
    log.close()
    index = next(tmp_path.glob("*.index"))
    index.unlink()
    if make is os.mkfifo:
        make(index)
        log = Log(tmp_path)
        assert log.ended() == [1, 2]
        log.close()


def test_an_index_that_is_endless_or_lies_is_not_used(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=2**16)
    written(log, 1, bytes(70_000))
    log.care()
    log.close()
    file = next(one for one in sorted(tmp_path.glob("*.log")))
    segment, _ = open_segment(file, grows=True, repairs=False)
    assert segment is not None
    rows = segment.rows.copy()
    for name, value in (("at", 2**64 - 1), ("at", 10**9), ("number", MAX_NUMBER)):
        lying = rows.copy()
        lying[name][-1] = value
        segment.columns, segment._rows = None, lying  # pyright: ignore[reportPrivateUsage]
        segment.seal()
        found, damage = open_segment(file, grows=False)
        assert found is not None
        assert damage is None
        assert (found.rows == rows).all()
    segment.index.unlink()
    segment.index.symlink_to("/dev/zero")
    found, _ = open_segment(file, grows=False)
    assert found is not None
    assert (found.rows == rows).all()


def test_the_number_of_a_request_leaves_room_for_the_next(tmp_path: Path) -> None:
    log = Log(tmp_path)
    written(log, 1, b"good")
    log.close()
    with next(tmp_path.glob("*.log")).open("ab") as file:
        file.write(record(RecordKind.OPENED, 2**64 - 1, 0, b"hostile"))
    log = Log(tmp_path)
    assert "which no server gives" in log.damages[0].message
    assert log.next_number == 2
    written(log, 2, b"next")
    log.close()
