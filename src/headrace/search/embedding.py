"""The model of an index: chunks by its tokens, vectors of chunks and of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.input_purpose import INPUT_TYPES
from headrace.inference.model_runner import ModelRunner
from headrace.ops.value import Array
from headrace.search.chunks import chunked
from headrace.search.index import TextSpan
from headrace.search.vectors import unit
from headrace.tasks.embed import EmbedOptions, embed_texts

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

CHUNK_TOKENS = 256
LEAST_TOKENS = 16


class IndexModel:
    """Runs a model that embeds texts."""

    def __init__(self, runner: ModelRunner, name: str) -> None:
        self._runner, self.name = runner, name

    async def split(self, texts: Sequence[str], tokens: int, call: CallContext) -> list[list[TextSpan]]:
        """The chunks of each text, of at most so many tokens and never more than the model reads."""
        async with self._runner.lease(self.name, call, "embed") as model:
            before = _prompt(model, "document")[1]
            most = min(tokens, model.context_length - len(model.tokenizer.encode(before)) - 2)
            if most < LEAST_TOKENS:
                raise InvalidRequest(
                    f"chunks have {most:,} tokens, at least {LEAST_TOKENS} are needed: raise the size of"
                    " chunks, or use a model with a longer context",
                    param="chunk",
                )

            def split() -> list[list[TextSpan]]:
                places = model.tokenizer.encode_with_places
                return [chunked(text, lambda part: places(part)[1], most) for text in texts]

            return await self._runner.in_thread(model, split)

    async def vectors(
        self, texts: Sequence[str], call: CallContext, purpose: str, names: Sequence[str]
    ) -> Array:
        """Unit vectors [texts, size], for `purpose` "query" or "document". `names` are those of the texts in
        errors."""
        async with self._runner.lease(self.name, call, "embed") as model:
            options = EmbedOptions(prompt_name=_prompt(model, purpose)[0], truncate=purpose == "document")
        once = list(dict.fromkeys(texts))
        vectors = await embed_texts(self._runner, self.name, once, call, options)
        places = {text: place for place, text in enumerate(once)}
        return (
            unit(vectors[[places[text] for text in texts]], list(names)) if texts else np.empty((0, 0), "f4")
        )


def _prompt(model: LoadedModel, purpose: str) -> tuple[str | None, str]:
    """The model's own prompt for queries or documents: its name and its text."""
    prompts = model.input_rules.prompts
    name = next((one for one in INPUT_TYPES[purpose] if one in prompts), None)
    return name, model.input_rules.prompt(name)
