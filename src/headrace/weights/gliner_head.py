"""The head of a GLiNER checkpoint: its tensors, checked, in the form that `tasks` computes with.

The package `gliner` scores spans by `out(relu([start_i; end_j])) . prompt`, where `out` is a layer, a relu
and a second layer. The first layer is a sum of two products, one of each part, and the second one can be
multiplied with the prompt instead of each span; so a span costs one sum, one relu and one product a label.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.confined import confined
from headrace.weights.gliner import ENCODER, GLINER, GlinerSettings, gliner_settings
from headrace.weights.safetensors.reader import SafetensorsFile

Array = NDArray[np.float32]
TENSORS = "model.safetensors"
_MAX_BYTES = 1 << 20
_SHOWN = 3
_SPANS = "span_rep_layer.span_rep_layer"


class AffineLayer(Struct, frozen=True, eq=False):
    """`x @ weight + bias`: weight [inputs, outputs], bias [outputs]."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        """Of rows [n, inputs] the outputs [n, outputs]."""
        return x @ self.weight + self.bias


class Mlp(Struct, frozen=True, eq=False):
    """A layer, a relu, a second layer."""

    first: AffineLayer
    second: AffineLayer

    def __call__(self, x: Array) -> Array:
        """Of rows [n, inputs] the outputs [n, outputs]."""
        return self.second(np.maximum(self.first(x), 0))


class LstmDirection(Struct, frozen=True, eq=False):
    """One direction of a layer: gates in the order input, forget, cell, output; [inputs, 4 * size],
    [size, 4 * size] and both biases together [4 * size]."""

    inputs: AffineLayer
    hidden: Array


class SpanScorer(Struct, frozen=True, eq=False):
    """Span level: what becomes of a word as a start and as an end, of both together, and of a label."""

    start: Mlp
    end: Mlp
    out: Mlp
    label: Mlp


class TokenScorer(Struct, frozen=True, eq=False):
    """Token level: two vectors of a word and of a label, and what scores both for start, end and inside."""

    word: AffineLayer
    label: AffineLayer
    out: Mlp


class GlinerHead(Struct, frozen=True, eq=False):
    """`projection` brings the encoder's states to the head's size, where these differ; `lstm` has both
    directions of each layer."""

    settings: GlinerSettings
    projection: AffineLayer | None
    lstm: tuple[tuple[LstmDirection, LstmDirection], ...]
    scorer: SpanScorer | TokenScorer


class _Reader:
    """Tensors by name and shape; knows which were read."""

    def __init__(self, file: SafetensorsFile, name: str) -> None:
        self._file, self._name = file, name
        self.read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def tensor(self, name: str, *shape: int) -> Array:
        info = self._file.tensors.get(name)
        if info is None:
            raise CorruptFile(f"{TENSORS} of {self._name} has no tensor {name!r}: fetch it again")
        if tuple(info.shape) != shape:
            raise CorruptFile(
                f"{TENSORS} of {self._name}: {name!r} has the shape {list(info.shape)}, by {GLINER} it is"
                f" {list(shape)}: correct the file"
            )
        self.read.add(name)
        found = self._file.float32(info)
        if not np.isfinite(found).all():
            raise CorruptFile(
                f"{TENSORS} of {self._name}: {name!r} holds numbers that are not finite: fetch it again"
            )
        return found

    def layer(self, name: str, inputs: int, outputs: int) -> AffineLayer:
        weight = self.tensor(f"{name}.weight", outputs, inputs)
        return AffineLayer(np.ascontiguousarray(weight.T), self.tensor(f"{name}.bias", outputs))

    def mlp(self, name: str, inputs: int, inner: int, outputs: int) -> Mlp:
        """As torch names the modules of a sequence with a dropout inside."""
        return Mlp(self.layer(f"{name}.0", inputs, inner), self.layer(f"{name}.3", inner, outputs))

    def direction(self, place: str, inputs: int, size: int) -> LstmDirection:
        def named(name: str, *shape: int) -> Array:
            return self.tensor(f"rnn.lstm.{name}_{place}", *shape)

        bias = named("bias_ih", 4 * size) + named("bias_hh", 4 * size)
        weight = np.ascontiguousarray(named("weight_ih", 4 * size, inputs).T)
        hidden = np.ascontiguousarray(named("weight_hh", 4 * size, size).T)
        return LstmDirection(AffineLayer(weight, bias), hidden)

    def check_all_read(self) -> None:
        unread = sorted(name for name in self._file.tensors if not name.startswith(ENCODER))
        unread = [name for name in unread if name not in self.read]
        if unread:
            more = f" and {len(unread) - _SHOWN:,} more" if len(unread) > _SHOWN else ""
            raise UnsupportedModel(
                f"{TENSORS} of {self._name} holds tensors that this kind of GLiNER does not have:"
                f" {', '.join(repr(name[:80]) for name in unread[:_SHOWN])}{more}: without them it would"
                " compute something else"
            )


def is_gliner(folder: Path) -> bool:
    """Whether the folder is that of a GLiNER checkpoint."""
    return (folder / GLINER).is_file()


def read_gliner_head(folder: Path, states: int) -> GlinerHead:
    """The head on an encoder with `states` numbers per token.

    Raises UnsupportedModel for parts that are not computed here, CorruptFile where the files disagree.
    """
    settings = gliner_settings(strict_json.read_object(confined(folder, GLINER), _MAX_BYTES))
    path = confined(folder, TENSORS)
    if not path.is_file():
        raise UnsupportedModel(
            f"{folder.name} has no {TENSORS}: save the GLiNER model in one file"
            " (GLiNER.save_pretrained(..., safe_serialization=True))"
        )
    with SafetensorsFile(path) as file:
        reader = _Reader(file, folder.name)
        head = _head(reader, settings, states)
        reader.check_all_read()
    return head


def _head(reader: _Reader, settings: GlinerSettings, states: int) -> GlinerHead:
    n, at = settings.hidden, "token_rep_layer.projection"
    projection = None if states == n else reader.layer(at, states, n)
    if settings.lstm_layers and n % 2:
        raise CorruptFile(f"{GLINER} has hidden_size {n}, of which the LSTM has half in each direction")
    lstm = tuple(
        (reader.direction(f"l{layer}", n, n // 2), reader.direction(f"l{layer}_reverse", n, n // 2))
        for layer in range(settings.lstm_layers)
    )
    scorer = _span_scorer(reader, n) if settings.level == "span" else _token_scorer(reader, n)
    return GlinerHead(settings, projection, lstm, scorer)


def _span_scorer(reader: _Reader, n: int) -> SpanScorer:
    return SpanScorer(
        start=reader.mlp(f"{_SPANS}.project_start", n, 4 * n, n),
        end=reader.mlp(f"{_SPANS}.project_end", n, 4 * n, n),
        out=reader.mlp(f"{_SPANS}.out_project", 2 * n, 4 * n, n),
        label=reader.mlp("prompt_rep_layer", n, 4 * n, n),
    )


def _token_scorer(reader: _Reader, n: int) -> TokenScorer:
    return TokenScorer(
        word=reader.layer("scorer.proj_token", n, 2 * n),
        label=reader.layer("scorer.proj_label", n, 2 * n),
        out=reader.mlp("scorer.out_mlp", 3 * n, 4 * n, 3),
    )
