"""Readers of documents: real files of each kind, and hostile ones, each of which fails alone."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator

import pytest

from headrace.config.extras import ExtraMissing
from headrace.isolation.limits import ProcessLimits
from headrace.search.documents import DocumentFailed
from headrace.search.readers.document_reader import DocumentReader
from headrace.search.readers.kinds import KINDS, kind_of, reader_of


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    found = DocumentReader(ProcessLimits(5.0, 300 * 2**20))
    yield found
    found.close()


def pdf(*pages: bytes, extra: bytes = b"", trailer: bytes = b"", packed: bool = False) -> bytes:
    """A PDF with a page for each text, written as one was in 1993."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [" + kids + b"] /Count %d >>" % len(pages),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
            b" /Contents %d 0 R >>" % (5 + 2 * number)
        )
        content = text if packed else b"BT /F1 12 Tf 72 700 Td (" + text + b") Tj ET"
        filter = b" /Filter /FlateDecode" if packed else b""
        objects.append(b"<< /Length %d%b >>\nstream\n" % (len(content), filter) + content + b"\nendstream")
    out, offsets = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, 2)
    for number, content in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n" % number + content + b"\nendobj\n")
    out.write(extra)
    place = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % offset for offset in offsets))
    out.write(
        b"trailer\n<< /Size %d /Root 1 0 R %b>>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, trailer, place)
    )
    return out.getvalue()


def zipped(**parts: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_kinds() -> None:
    assert {kind: reader_of(kind).suffixes[0] for kind in KINDS} == {
        "text": ".txt",
        "markdown": ".md",
        "html": ".html",
        "pdf": ".pdf",
        "office": ".docx",
    }
    assert kind_of("a/B.PDF") == "pdf"
    assert kind_of("a.bin") is None


def test_text_and_markdown(reader: DocumentReader) -> None:
    assert reader.read("a.txt", "\ufeffé\r\nb".encode()).text == "é\nb"
    assert reader.read("a.txt", "é".encode("utf-16")).text == "é"
    found = reader.read("a.md", b"---\ntitle: x\n---\n# The title #\n\ntext")
    assert found.title == "The title"
    assert found.text == "\n\n\n# The title #\n\ntext"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"ab\xff", "no text in UTF-8 .byte 2"),
        ("a.txt", b"a\x00b", "NUL"),
        ("a.txt", b" \n ", "empty"),
        ("a.md", b"", "empty"),
        ("a.txt", b"a" * (64 * 2**20 + 1), "at most 67,108,864"),
        ("a.txt", b"a" * 16_000_001, "at most|more than 16,000,000 characters"),
    ],
)
def test_text_that_is_none(reader: DocumentReader, name: str, data: bytes, words: str) -> None:
    with pytest.raises(DocumentFailed, match=f"{name} .*{words}"):
        reader.read(name, data)


def test_html(reader: DocumentReader) -> None:
    pytest.importorskip("trafilatura", reason="needs headrace[search]")
    words = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep. " * 5
    page = (
        f"<html><head><title>Fox &amp; dog</title><script>var x = 1;</script></head><body><nav>"
        "<a href='/'>Home"
        f"</a></nav><article><h1>Foxes</h1><p>{words}</p><h2>Dogs</h2><p>{words}</p></article></body></html>"
    )
    found = reader.read("a.html", page.encode())
    assert found.title == "Fox & dog"
    assert "## Dogs" in found.text
    assert words.strip() in found.text
    assert "var x" not in found.text
    for wrong in (b"", b"<html></html>", b"<" * 100_000):
        with pytest.raises(DocumentFailed, match=r"b\.html"):
            reader.read("b.html", wrong)
    nested = b"<div>" * 50_000 + b"text" + b"</div>" * 50_000
    try:
        reader.read("deep.html", nested)
    except DocumentFailed as error:
        assert "deep.html" in error.message


def test_pdf(reader: DocumentReader) -> None:
    pytest.importorskip("pypdf", reason="needs headrace[search]")
    found = reader.read("a.pdf", pdf(b"Hello world", b"Second page"))
    assert found.text == "Hello world\fSecond page\f"
    assert found.pages == (0, 12)


def test_hostile_pdfs(reader: DocumentReader) -> None:
    pypdf = pytest.importorskip("pypdf", reason="needs headrace[search]")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(b"secret")))
    writer.encrypt("password", algorithm="RC4-128")
    encrypted = io.BytesIO()
    writer.write(encrypted)
    bomb = zlib.compress(b"BT (" + b"a" * (600 * 2**20) + b") Tj ET", 1)
    endless = pdf(b"x").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]")
    for name, data, words in (
        ("encrypted.pdf", encrypted.getvalue(), "encrypted"),
        ("bomb.pdf", pdf(bomb, packed=True), "MB|damaged|more than|no text"),
        ("endless.pdf", endless, "damaged|nested|more than|no text"),
        ("none.pdf", b"not a pdf", "damaged"),
        ("cut.pdf", pdf(b"x" * 5000)[:700], "damaged|no text"),
        ("empty.pdf", pdf(b""), "no text"),
    ):
        with pytest.raises(DocumentFailed, match=f"{name} .*({words})"):
            reader.read(name, data)
    assert reader.read("after.pdf", pdf(b"still here")).text == "still here\f"


def test_office(reader: DocumentReader) -> None:
    bomb = zipped(**{"word/document.xml": b"\x00" * (600 * 2**20)})
    try:
        for name, data, words in (
            ("bomb.docx", bomb, "unpack to"),
            ("none.docx", b"PK no zip", "no document of an office program"),
            ("empty.docx", zipped(), "damaged|no text|cannot be read"),
        ):
            with pytest.raises(DocumentFailed, match=f"{name} .*({words})"):
                reader.read(name, data)
    except ExtraMissing as missing:
        assert "headrace[office]" in missing.message
        pytest.skip("needs headrace[office]")


def test_what_needs_an_extra(reader: DocumentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"headrace\[search\]"):
        reader.read("a.pdf", b"")


def test_titles_of_markdown_take_no_time_of_their_square(reader: DocumentReader) -> None:
    for line in ("# " + "#" * 10**5 + "x", "# " + " #" * 10**5 + "x"):
        title = reader.read("a.md", line.encode()).title
        assert title and line[2:].lstrip().startswith(title)
