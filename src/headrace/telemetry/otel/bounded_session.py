"""HTTP to a collector: what it answers is not read beyond a bound, and no redirection is followed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import requests
from requests.exceptions import TooManyRedirects

MAX_REPLY_BYTES = 1024
"""Of a body that is read, so that its connection can be used again."""


class BoundedSession(requests.Session):
    """What the SDK's exporters send by. They look at the status alone, for which requests reads all of the
    body, without a bound on its size or time; and they take a redirection for success."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """The reply with as much of its body as was read; TooManyRedirects where it names another address."""
        reply = super().send(request, **(kwargs | {"stream": True}))
        declared, body = reply.headers.get("content-length", ""), b""
        if declared.isdecimal() and len(declared) < 9 and int(declared) <= MAX_REPLY_BYTES:
            body = reply.raw.read(MAX_REPLY_BYTES, decode_content=False)
        else:
            reply.close()
        reply._content = body  # pyright: ignore[reportPrivateUsage]
        if 300 <= reply.status_code < 400:
            raise TooManyRedirects(f"the collector answers {reply.status_code}", response=reply)
        return reply

    def resolve_redirects(self, *args: Any, **kwargs: Any) -> Generator[Any]:
        """None: what is sent goes to the address that was configured."""
        yield from ()
