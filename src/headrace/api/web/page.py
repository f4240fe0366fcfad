"""GET /: the page for people. Clients that ask for no HTML get a line that says that a server is here."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from headrace import __version__
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound
from headrace.api.service import Service, get_service

FOLDER: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for browsers that do not know frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_FOREVER: Final = "public, max-age=31536000, immutable"  # the name of an asset has the hash of its content


class _File(Struct, frozen=True):
    data: bytes
    packed: bytes
    etag: str
    media_type: str
    cache_control: str


@Endpoint("GET HEAD", "/", hidden=True)
async def root(http: HttpRequest) -> Response:
    """The page; for clients that look whether a server is here, such as Ollama's, a line of text."""
    service = get_service(http)
    if service.settings.disable_page or "text/html" not in http.headers.get("accept", ""):
        said = f"Headrace {__version__} is running. /docs lists what it answers.\n"
        return PlainTextResponse(said, headers={"vary": "accept"})
    return await _reply(http, service, "index.html")


@Endpoint("GET HEAD", "/page/{name}", hidden=True)
async def asset(http: HttpRequest, name: str) -> Response:
    """A file of the page."""
    service = get_service(http)
    if service.settings.disable_page:
        raise NotFound(f"{call_of(http).path}: the page is switched off by the setting disable_page")
    return await _reply(http, service, name)


async def _reply(http: HttpRequest, service: Service, name: str) -> Response:
    found = (await service.run_in_thread(_files)).get(name)
    if found is None:
        raise NotFound(f"{call_of(http).path}: the page has no such file: reload it")
    headers = {
        **_HEADERS,
        "cache-control": found.cache_control,
        "etag": found.etag,
        "vary": "accept, accept-encoding",
    }
    if found.etag in http.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    data = found.data
    if "gzip" in http.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = found.packed, "gzip"
    return Response(data, headers=headers, media_type=found.media_type)


@cache
def _files() -> dict[str, _File]:
    """The files by name. Read once: they are the package's own."""
    return {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in _TYPES}


def _read(path: Path) -> _File:
    data = path.read_bytes()
    has_hash = path.suffix not in (".html", ".txt")
    return _File(
        data=data,
        packed=gzip.compress(data, mtime=0),
        etag=f'W/"{hashlib.sha256(data).hexdigest()[:20]}"',
        media_type=_TYPES[path.suffix],
        cache_control=_FOREVER if has_hash else "no-cache",
    )
