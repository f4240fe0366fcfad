"""Files on web servers, over http or https. The secret is a bearer token."""

from __future__ import annotations

from headrace.data.connectors.file import format_of, reader
from headrace.data.source import Connector, Opened, Source, literal, quoted
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
    secret = ()
    if opened.secret is not None:
        secret = (
            f"CREATE SECRET {quoted(opened.attached)} (TYPE http, BEARER_TOKEN {literal(opened.secret)}, "
            f"SCOPE {literal(root)})",
        )
    return Source(
        relation=reader(opened, url, found),
        extensions=("httpfs",),
        statements=secret,
        paths=(url,),
    )


CONNECTOR = Connector(lambda opened: url_source(opened, "http"), ("httpfs",))
