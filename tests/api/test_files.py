"""Files over HTTP through the official client: kept, listed, read, deleted, and nobody else's."""

from __future__ import annotations

import random

import httpx
import openai
import pytest
from in_process import Running

import headrace.api.openai.files
from headrace.api.http.multipart import parse_form
from headrace.errors import InvalidRequest

LINES = b'{"custom_id": "1"}\n' * 3


@pytest.fixture
def server(serve, tmp_path) -> Running:
    return serve(store=tmp_path / "store.sqlite3")


def upload(
    server: Running, name: str = "in.jsonl", content: bytes = LINES, **more
) -> openai.types.FileObject:
    return server.openai().files.create(file=(name, content), purpose=more.pop("purpose", "batch"), **more)


def test_a_file_comes_back_as_it_was(server: Running) -> None:
    content = bytes(range(256)) * 12_000 + b"--boundary\r\n--"
    file = upload(server, 'a "b" é.jsonl', content)
    assert (file.bytes, file.filename, file.purpose) == (len(content), 'a "b" é.jsonl', "batch")
    assert (file.object, file.status, file.expires_at) == ("file", "processed", None)
    client = server.openai()
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    deleted = client.files.delete(file.id)
    assert deleted.deleted and deleted.id == file.id
    for missing in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            missing(file.id)


def test_files_of_every_purpose_are_kept(server: Running) -> None:
    for purpose in ("assistants", "evals", "fine-tune", "user_data", "vision"):
        file = upload(server, "a.jsonl", purpose=purpose)
        assert file.purpose == purpose
        with pytest.raises(openai.BadRequestError, match=f"the file's purpose is '{purpose}'"):
            server.openai().batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )


def test_pages_in_either_order(server: Running) -> None:
    ids = [upload(server, f"{n}.jsonl", purpose="batch" if n % 2 else "user_data").id for n in range(5)]
    files = server.openai().files
    assert [file.id for file in files.list()] == ids[::-1]
    assert [file.id for file in files.list(order="asc", limit=2)] == ids  # three pages
    first = files.list(limit=2)
    assert first.has_more and [file.id for file in first.data] == ids[:-3:-1]
    assert [file.id for file in files.list(after=ids[2], limit=5).data] == ids[1::-1]
    assert [file.id for file in files.list(purpose="user_data")] == [ids[4], ids[2], ids[0]]


def test_files_expire(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    file = upload(server, expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.expires_at == file.created_at + 3600
    monkeypatch.setattr("headrace.storage.files.time.time", lambda: file.created_at + 3601.0)
    assert list(server.openai().files.list()) == []
    upload(server)
    rows = server.server._service.database.query("SELECT COUNT(*) FROM files")
    assert rows == [(1,)]


def test_every_key_has_its_own(serve, tmp_path) -> None:
    server = serve(store=tmp_path / "store.sqlite3", api_key="one,two")
    one, two = server.openai(api_key="one"), server.openai(api_key="two")
    file = one.files.create(file=LINES, purpose="batch")
    assert [other.id for other in two.files.list()] == []
    with pytest.raises(openai.NotFoundError):
        two.files.content(file.id)
    with pytest.raises(openai.NotFoundError):
        two.files.delete(file.id)
    # Also after a restart, with the keys in another order.
    again = serve(store=tmp_path / "store.sqlite3", api_key="two,one")
    assert [kept.id for kept in again.openai(api_key="one").files.list()] == [file.id]
    assert list(again.openai(api_key="two").files.list()) == []


def test_bad_uploads_are_named(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    http = server.http()
    good = {"file": ("a.jsonl", LINES)}
    for data, files, param in (
        ({}, good, "purpose"),
        ({"purpose": "keep"}, good, "purpose"),
        ({"purpose": "batch"}, {"file": ("a", b"")}, "file"),
        ({"purpose": "batch"}, {"file": ("a" * 300, b"x")}, "file"),
        ({"purpose": "batch", "file": "text"}, {"other": ("a", b"x")}, "other"),
        ({"purpose": "batch", "color": "red"}, good, "color"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, good, "expires_after"),
    ):
        reply = http.post("/v1/files", data=data, files=files)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert http.post("/v1/files", json={"purpose": "batch"}).json()["error"]["code"] == "invalid_form"
    monkeypatch.setattr(headrace.api.openai.files, "MAX_STORED_BYTES", 100)
    upload(server)
    with pytest.raises(openai.BadRequestError, match="delete some first"):
        upload(server)
    with pytest.raises(openai.APIStatusError) as caught:
        upload(server, content=b" " * (32 * 2**20))
    assert caught.value.status_code == 413


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "order=up", "limit=²"])
def test_bad_queries(server: Running, query: str) -> None:
    assert server.http().get(f"/v1/files?{query}").status_code == 400


def test_nothing_is_made_by_looking(server: Running) -> None:
    assert list(server.openai().files.list()) == []
    assert list(server.openai().batches.list()) == []
    assert server.http().get("/v1/files/file-1").status_code == 404
    assert not server.server._service.database.exists


def test_forms_as_httpx_writes_them() -> None:
    request = httpx.Request(
        "POST", "http://x", data={"a": "1", "b": "é\r\n"}, files={"f": ("n\"'\r\n;é", b"\r\n--\r\n")}
    )
    form = parse_form(request.headers["content-type"], request.read())
    assert {name: field.content.decode() for name, field in form.items()} == {
        "a": "1",
        "b": "é\r\n",
        "f": "\r\n--\r\n",
    }


def test_hostile_forms_are_refused_or_read() -> None:
    random_ = random.Random(3)
    seed = (
        b"--x\r\nContent-Disposition: form-data; name=\"a\"; filename*=UTF-8''b%20c\r\n\r\n1\r\n"
        b"--x\r\nContent-Disposition: form-data; name*0*=utf-8'en'd; name*1=\"e\"\r\n\r\n2\r\n--x--"
    )
    pieces = [
        b'"',
        b"'",
        b";",
        b"%",
        b"\r\n",
        b"--x",
        b"\x00",
        b"\xff",
        b"name",
        b"*",
        b"=",
        b"utf-9''",
        b"\\",
    ]
    read = 0
    for _ in range(4000):
        body = bytearray(seed)
        for _ in range(random_.randrange(1, 6)):
            at = random_.randrange(len(body))
            body[at : at + random_.randrange(3)] = random_.choice(pieces)
        header = "multipart/form-data; boundary=x" + random_.choice(["", '"', "; a=b", "\xff", "*=x''y"])
        try:
            parse_form(header, bytes(body))
            read += 1
        except InvalidRequest:
            pass
    assert 0 < read < 4000


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('filename="a b.txt"', "a b.txt"),
        ("filename=a.txt", "a.txt"),
        (r'filename="a\"b\\c\d"', r'a"b\c\d'),
        ("filename=\"x\"; filename*=UTF-8''%C3%BC", "x"),
        ("filename*=UTF-8''%C3%BC%20x", None),  # forbidden by RFC 7578, 4.2
        ('filename="ü"', "ü"),
        ('filename="%22"', '"'),
        ("color=red", None),
    ],
)
def test_names_of_files_as_clients_write_them(written: str, name: str | None) -> None:
    head = f'CONTENT-DISPOSITION:form-data; name="f"; {written}\r\nContent-Type: text/plain'
    body = f"--a b\r\n{head}\r\n\r\nx\r\n--a b--\r\n".encode()
    form = parse_form('Multipart/Form-Data; charset=x; boundary="a b"', body)
    assert (form["f"].filename, form["f"].content) == (name, b"x")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x--",
        b"--x\r\n\r\n",
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\nb',
        b"--x\r\n\r\nb\r\n--x--",
        b'--x\r\ncontent-disposition: form-data; filename="a"\r\n\r\nb\r\n--x--',
        b"--x\r\n" + b"a: b\r\n" * 9 + b'content-disposition: form-data; name="a"\r\n\r\nb\r\n--x--',
        b'--x\r\ncontent-disposition: form-data; name="' + b"a" * 5000 + b'"\r\n\r\nb\r\n--x--',
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n'
        b"content-transfer-encoding: base64\r\n\r\n!\r\n--x--",
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n--x--',
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n' * 2 + b"--x--",
        b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n' * 40 + b"--x--",
    ],
)
def test_what_is_no_form(body: bytes) -> None:
    if body == b"--x--":
        assert parse_form("multipart/form-data; boundary=x", body) == {}
        return
    with pytest.raises(InvalidRequest) as caught:
        parse_form("multipart/form-data; boundary=x", body)
    assert caught.value.code == "invalid_form"
