"""Images of Ollama's requests: base64 without a word about what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from headrace.chat.messages import Image
from headrace.errors import InvalidRequest

_KINDS: Mapping[str, str] = {
    "/9j/": "jpeg",
    "iVBORw0KGgo": "png",
    "R0lGODlh": "gif",
    "R0lGODdh": "gif",
    "UklGR": "webp",
}
"""The beginnings of their bytes, as base64."""


def images_of(given: object, where: str) -> tuple[Image, ...]:
    """The images at `where`, each before the text; InvalidRequest for what is none."""
    if given in (None, []):
        return ()
    if not isinstance(given, list) or not all(isinstance(one, str) for one in cast("list[object]", given)):
        raise InvalidRequest(f"{where} is no list of images as base64", param=where)
    return tuple(_image(one, where) for one in cast("list[str]", given))


def _image(data: str, where: str) -> Image:
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)
    if kind is None:
        raise InvalidRequest(f"{where} cannot be read: send PNG, JPEG, GIF or WebP as base64", param=where)
    return Image(f"data:image/{kind};base64,{data}", param=where)
