"""Every command and program that the documentation prints runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from snippets import Page, Snippet, snippets

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts),
]
RUN = ("python", "sh")
LONG = (
    *("quantization", "pruning", "benchmarking", "classify-and-rerank", "embeddings", "entities"),
    *("speculation", "adaptive-loop"),
)  # pages whose commands compute for long; what they use has tests of its own


def of_page(page: Path) -> Any:
    marks = [pytest.mark.nightly] if page.stem in LONG else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


def runnable(page: Path) -> list[Snippet]:
    return [each for each in snippets(page) if each.language in RUN and "skip" not in each.directives]


@pytest.mark.parametrize("page", [of_page(page) for page in PAGES if runnable(page)])
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    running = Page(tmp_path)
    try:
        for snippet in snippets(page):
            try:
                print(running.run(snippet))
            except AssertionError as error:
                raise AssertionError(f"{page.relative_to(ROOT)}:{snippet.line}: {error}") from None
    finally:
        running.close()


def test_most_snippets_run() -> None:
    """What cannot run says why; that stays the exception."""
    skipped = [
        (page.relative_to(ROOT), each.line, each.directives["skip"])
        for page in PAGES
        for each in snippets(page)
        if each.language in RUN and "skip" in each.directives
    ]
    ran = sum(len(runnable(page)) for page in PAGES)
    print(f"{ran} snippets run, {len(skipped)} do not:", *skipped, sep="\n")
    assert len(skipped) <= ran / 3


def test_a_snippet_that_fails_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n\n```sh\nfalse\n```\n")
    first, second, third = snippets(page)
    running = Page(tmp_path)
    try:
        running.run(first)
        with pytest.raises(AssertionError, match="assert x == 2"):
            running.run(second)
        with pytest.raises(AssertionError):
            running.run(third)
    finally:
        running.close()


def test_no_block_is_without_a_language() -> None:
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^ *```(.*)$", text, re.MULTILINE)
        assert len(fences) % 2 == 0, page
        assert all(fence for fence in fences[::2]), f"{page}: a block without a language"
