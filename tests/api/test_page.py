"""GET / over the running server: who gets the page, under which policy, and who does not."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from in_process import Running

import headrace.api.web
from headrace.config.settings import Settings

FOLDER = Path(headrace.api.web.__file__).parent / "page"
HTML = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
MAX_BYTES = 150_000
"""Of all that is sent, packed; and unpacked of what the page is opened with, with any pane."""


def page(server: Running) -> httpx.Response:
    reply = server.http().get("/", headers=HTML)
    assert reply.status_code == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    return reply


def assets(server: Running) -> list[str]:
    return re.findall(r'(?:src|href)="(page/[^"]+)"', page(server).text)


def test_a_browser_gets_the_page_and_others_a_line(server: Running) -> None:
    assert '<div id="app">' in page(server).text
    for accept in ("*/*", "application/json", "text/plain"):
        line = server.http().get("/", headers={"accept": accept})
        assert line.headers["content-type"].startswith("text/plain") and "is running" in line.text
        assert "accept" in line.headers["vary"]
    assert server.http().head("/", headers=HTML).status_code == 200


def test_nothing_is_inline_or_from_elsewhere(server: Running) -> None:
    text = page(server).text
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", text)
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert len(assets(server)) == 6


def test_the_policy_of_every_file(server: Running) -> None:
    for path in ("", *assets(server), "page/licenses.txt"):
        headers = server.http().get(f"/{path}", headers=HTML).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
        assert policy["img-src"] == "'self' data:" and policy["base-uri"] == policy["object-src"] == "'none'"
        assert "script-src" not in policy and "style-src" not in policy, "they fall back to default-src"
        assert policy["require-trusted-types-for"] == "'script'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_assets_are_kept_forever_and_the_page_is_asked_for_again(server: Running) -> None:
    http = server.http()
    for path in assets(server):
        reply = http.get(f"/{path}")
        assert "immutable" in reply.headers["cache-control"]
        again = http.get(f"/{path}", headers={"if-none-match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    first = page(server)
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/", headers=HTML | {"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


def test_it_is_small_and_sent_packed(server: Running) -> None:
    sent, needed = 0, {"/", *(f"/{path}" for path in assets(server))}
    sizes: dict[str, int] = {}
    others = [f"/page/{file.name}" for file in FOLDER.glob("*.js") if f"/page/{file.name}" not in needed]
    assert len(others) == 8, "the code of four panes, of replicas, of Markdown, and what panes share"
    for path in (*needed, *others):
        with server.http().stream("GET", path, headers=HTML | {"accept-encoding": "gzip"}) as reply:
            raw = b"".join(reply.iter_raw())
        assert reply.headers["content-encoding"] == "gzip" and "accept-encoding" in reply.headers["vary"]
        plain = server.http().get(path, headers=HTML | {"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert gzip.decompress(raw) == plain.content
        sent += len(raw)
        sizes[path] = len(plain.content)
    assert sent <= MAX_BYTES
    tables = {path for path in others if "/page/chunk" in path}
    opened = sum(sizes[path] for path in needed | tables)
    for path in others:
        if "/page/markdown" not in path and path not in tables:
            assert opened + sizes[path] <= MAX_BYTES, path


@pytest.mark.parametrize(
    "name", ["none.js", "..%2f..%2f__init__.py", "%2e%2e", "__init__.py", "index.html/x"]
)
def test_other_files_are_not_there(server: Running, name: str) -> None:
    reply = server.http().get(f"/page/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"]


def test_the_page_needs_no_key_and_what_it_asks_for_does(serve: Callable[..., Running]) -> None:
    server = serve(api_key="secret")
    assert all(server.http().get(f"/{path}").status_code == 200 for path in assets(server))
    for path in ("/v1/models", "/v1/live", "/metrics", "/docs"):
        assert server.http().get(path).status_code == 401
    assert server.http().post("/", json={"inputs": "a"}, headers=HTML).status_code == 401
    assert server.http().post("/page/x").status_code == 401


def test_a_setting_switches_it_off(serve: Callable[..., Running]) -> None:
    assert Settings().disable_page is False
    server = serve(disable_page=True, api_key="secret")
    key = {"authorization": "Bearer secret"}
    assert server.http().get("/", headers=HTML).status_code == 401
    line = server.http().get("/", headers=HTML | key)
    assert line.headers["content-type"].startswith("text/plain") and "is running" in line.text
    refused = server.http().get("/page/licenses.txt", headers=key)
    assert refused.status_code == 404 and "disable_page" in refused.json()["error"]["message"]


def test_the_licenses_of_what_is_inside_are_with_it() -> None:
    text = (FOLDER / "licenses.txt").read_text()
    for package in ("preact", "@preact/signals", "marked", "dompurify", "uplot"):
        assert re.search(rf"^{package} \d+\.\d+\.\d+ \(.+\)$", text, re.MULTILINE), package
    assert text.count("Copyright") >= 5
