"""Files on web servers, over http or https. The secret is a bearer token."""

from __future__ import annotations

from urllib.parse import urlsplit

from headrace.data.connectors.file import format_of, reader
from headrace.data.source import PROXY, Connector, Opened, Source, literal, quoted
from headrace.errors import UsageError


def url_source(opened: Opened, scheme: str) -> Source:
    """A file at a URL of that scheme."""
    url = f"{scheme}:{opened.location}"
    found = format_of(opened)
    if not url.startswith(f"{scheme}://") or "@" in url.partition("://")[2].partition("/")[0]:
        raise UsageError(f"{opened.where}.from is no {scheme} address without a user in it")
    if found in ("arrow", "excel"):
        raise UsageError(f"{opened.where}: {found} is read from files of this machine only")
    root = "/".join(url.split("/")[:3]) + "/"
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise UsageError(f"{opened.where}.from has no port that is a number up to 65535") from None
    bearer = f"BEARER_TOKEN {literal(opened.secret)}, " if opened.secret is not None else ""
    return Source(
        relation=reader(opened, url, found),
        extensions=("httpfs",),
        statements=(
            f"CREATE SECRET {quoted(opened.attached)} (TYPE http, {bearer}HTTP_PROXY '{PROXY}', "
            f"SCOPE {literal(root)})",
        ),
        paths=(url,),
        origin=root,
        allow_private=opened.settings.allow_private,
    )


CONNECTOR = Connector(lambda opened: url_source(opened, "http"), ("httpfs",))
