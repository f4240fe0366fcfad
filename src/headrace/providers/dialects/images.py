"""Images of messages as providers take them."""

from __future__ import annotations

import re

from headrace.chat.messages import Image

_DATA = re.compile(r"data:(image/[a-z0-9.+-]+);base64,")


def data_of(image: Image) -> tuple[str, str] | None:
    """Media type and base64 of an image that is in the message itself; None for an address."""
    found = _DATA.match(image.url)
    return None if found is None else (found.group(1), image.url[found.end() :])
