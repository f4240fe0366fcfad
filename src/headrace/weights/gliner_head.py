"""The head of a GLiNER checkpoint: its tensors, checked, in the form that `tasks` computes with.

The package `gliner` scores spans by `out(relu([start_i; end_j])) . prompt`, where `out` is a layer, a relu
and a second layer. The first layer is a sum of two products, one of each part, and the second one can be
multiplied with the prompt instead of each span; so a span costs one sum, one relu and one product a label.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.confined import confined
from headrace.weights.gliner import ENCODER, GLINER, GlinerSettings, gliner_settings
from headrace.weights.head_tensors import TENSORS, AffineLayer, Array, HeadReader, Mlp, SpanScorer
from headrace.weights.safetensors.reader import SafetensorsFile

_MAX_BYTES = 1 << 20


class LstmDirection(Struct, frozen=True, eq=False):
    """One direction of a layer: gates in the order input, forget, cell, output; [inputs, 4 * size],
    [size, 4 * size] and both biases together [4 * size]."""

    inputs: AffineLayer
    hidden: Array


class TokenScorer(Struct, frozen=True, eq=False):
    """Token level: two vectors of a word and of a label, and what scores both for start, end and inside."""

    word: AffineLayer
    label: AffineLayer
    out: Mlp


class GlinerHead(Struct, frozen=True, eq=False):
    """`projection` brings the encoder's states to the head's size, where these differ; `lstm` has both
    directions of each layer; `label` is what becomes of a label at span level."""

    settings: GlinerSettings
    projection: AffineLayer | None
    lstm: tuple[tuple[LstmDirection, LstmDirection], ...]
    scorer: SpanScorer | TokenScorer
    label: Mlp | None = None


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
        reader = HeadReader(file, folder.name, GLINER)
        head = _head(reader, settings, states)
        reader.check_all_read(ENCODER, "GLiNER")
    return head


def _head(reader: HeadReader, settings: GlinerSettings, states: int) -> GlinerHead:
    n, at = settings.hidden, "token_rep_layer.projection"
    projection = None if states == n else reader.layer(at, states, n)
    if settings.lstm_layers and n % 2:
        raise CorruptFile(f"{GLINER} has hidden_size {n}, of which the LSTM has half in each direction")
    lstm = tuple(
        (_direction(reader, f"l{layer}", n), _direction(reader, f"l{layer}_reverse", n))
        for layer in range(settings.lstm_layers)
    )
    if settings.level == "token":
        return GlinerHead(settings, projection, lstm, _token_scorer(reader, n))
    spans = reader.spans("span_rep_layer.span_rep_layer", n)
    return GlinerHead(settings, projection, lstm, spans, reader.mlp("prompt_rep_layer", n, 4 * n, n))


def _direction(reader: HeadReader, place: str, n: int) -> LstmDirection:
    size = n // 2
    inputs = reader.affine(f"rnn.lstm.weight_ih_{place}", f"rnn.lstm.bias_ih_{place}", n, 4 * size)
    hidden = reader.affine(f"rnn.lstm.weight_hh_{place}", f"rnn.lstm.bias_hh_{place}", size, 4 * size)
    return LstmDirection(AffineLayer(inputs.weight, inputs.bias + hidden.bias), hidden.weight)


def _token_scorer(reader: HeadReader, n: int) -> TokenScorer:
    return TokenScorer(
        word=reader.layer("scorer.proj_token", n, 2 * n),
        label=reader.layer("scorer.proj_label", n, 2 * n),
        out=reader.mlp("scorer.out_mlp", 3 * n, 4 * n, 3),
    )
