"""Which models adapters can be trained on."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import InvalidRequest
from headrace.weights.hub.resolver import resolve


def base_folder(model: str, name: str) -> Path:
    """The folder of a model that is served as `name`. InvalidRequest where nothing can be trained on it."""
    found = resolve(model, offline=True)
    if not (found / "config.json").is_file():
        raise InvalidRequest(
            f"the weights of {name} are no folder of safetensors: adapters are trained on such, in float32"
            " or bfloat16; the adapter fits other formats of the same model",
            param="model",
        )
    return found
