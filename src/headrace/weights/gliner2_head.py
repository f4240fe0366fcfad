"""The head of a GLiNER 2 checkpoint: its tensors, checked, in the form that `tasks` computes with.

Spans are scored as in GLiNER, against what a GRU makes of each label: one vector for each instance that is
expected, of which entities need the first. Classes are scored by a classifier of each label's state.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.confined import confined
from headrace.weights.gliner2 import GLINER2_ENCODER, Gliner2Settings, gliner2_settings, is_gliner2_config
from headrace.weights.head_tensors import TENSORS, AffineLayer, Array, HeadReader, Mlp, SpanScorer
from headrace.weights.safetensors.reader import SafetensorsFile

CONFIG = "config.json"
MAX_COUNT = 20
_MAX_BYTES = 1 << 20
_INNER, _LAYERS = 128, 2  # of the transformer over labels
HEADS = 4
"""Of its attention."""


class Norm(Struct, frozen=True, eq=False):
    """Weight and bias of a layer norm, [size] each."""

    weight: Array
    bias: Array


class LabelLayer(Struct, frozen=True, eq=False):
    """A layer of the transformer over labels: queries, keys and values in one product; norms come after what
    they belong to."""

    attend: AffineLayer
    merge: AffineLayer
    attended: Norm
    mlp: Mlp
    done: Norm


class LabelTransformer(Struct, frozen=True, eq=False):
    """Labels that see each other, in a smaller size, and what becomes of both sizes together."""

    down: AffineLayer
    layers: tuple[LabelLayer, ...]
    up: tuple[AffineLayer, AffineLayer, AffineLayer]


class LabelEmbedding(Struct, frozen=True, eq=False):
    """What becomes of a label's state for the first instance: a step of a GRU, whose `inputs` are those of
    that instance [3 * size] in the order reset, update, new; then an MLP of both, or a transformer of their
    sum."""

    inputs: Array
    hidden: AffineLayer
    last: Mlp | LabelTransformer


class Gliner2Head(Struct, frozen=True, eq=False):
    """`count` says how many instances there are, 0 to 19, by the state of the task's mark."""

    settings: Gliner2Settings
    spans: SpanScorer
    count: Mlp
    label: LabelEmbedding
    classifier: Mlp


def is_gliner2(folder: Path) -> bool:
    """Whether the folder is that of a GLiNER 2 checkpoint. Raises CorruptFile."""
    try:
        return is_gliner2_config(strict_json.read_object(confined(folder, CONFIG), _MAX_BYTES))
    except FileNotFoundError:
        return False


def read_gliner2_head(folder: Path, states: int) -> Gliner2Head:
    """The head on an encoder with `states` numbers per token.

    Raises UnsupportedModel for parts that are not computed here, CorruptFile where the files disagree.
    """
    settings = gliner2_settings(strict_json.read_object(confined(folder, CONFIG), _MAX_BYTES))
    path = confined(folder, TENSORS)
    if not path.is_file():
        raise UnsupportedModel(f"{folder.name} has no {TENSORS}: save the GLiNER 2 model in one file")
    with SafetensorsFile(path) as file:
        reader, n = HeadReader(file, folder.name, "its encoder's config"), states
        head = Gliner2Head(
            settings,
            spans=reader.spans("span_rep.span_rep_layer", n),
            count=reader.mlp("count_pred", n, 2 * n, MAX_COUNT, last=2),
            label=_label(reader, settings, n),
            classifier=reader.mlp("classifier", n, 2 * n, 1, last=2),
        )
        reader.check_all_read(GLINER2_ENCODER, "GLiNER 2")
    return head


def _label(reader: HeadReader, settings: Gliner2Settings, n: int) -> LabelEmbedding:
    at, gru = "count_embed", "count_embed.gru"
    inputs = reader.affine(f"{gru}.weight_ih_l0", f"{gru}.bias_ih_l0", n, 3 * n)
    first = reader.tensor(f"{at}.pos_embedding.weight", MAX_COUNT, n)[:1]
    last: Mlp | LabelTransformer = (
        reader.mlp(f"{at}.projector", 2 * n, 4 * n, n, last=2)
        if settings.counting == "count_lstm"
        else _transformer(reader, f"{at}.transformer", n)
    )
    hidden = reader.affine(f"{gru}.weight_hh_l0", f"{gru}.bias_hh_l0", n, 3 * n)
    return LabelEmbedding(inputs(first)[0], hidden, last)


def _transformer(reader: HeadReader, at: str, n: int) -> LabelTransformer:
    up = f"{at}.out_projector"
    return LabelTransformer(
        down=reader.layer(f"{at}.in_projector", n, _INNER),
        layers=tuple(_layer(reader, f"{at}.transformer.layers.{layer}") for layer in range(_LAYERS)),
        up=(
            reader.layer(f"{up}.0", _INNER + n, n),
            reader.layer(f"{up}.2", n, n),
            reader.layer(f"{up}.4", n, n),
        ),
    )


def _layer(reader: HeadReader, at: str) -> LabelLayer:
    def norm(name: str) -> Norm:
        return Norm(reader.tensor(f"{name}.weight", _INNER), reader.tensor(f"{name}.bias", _INNER))

    attention = f"{at}.self_attn"
    return LabelLayer(
        attend=reader.affine(f"{attention}.in_proj_weight", f"{attention}.in_proj_bias", _INNER, 3 * _INNER),
        merge=reader.layer(f"{attention}.out_proj", _INNER, _INNER),
        attended=norm(f"{at}.norm1"),
        mlp=Mlp(
            reader.layer(f"{at}.linear1", _INNER, 2 * _INNER),
            reader.layer(f"{at}.linear2", 2 * _INNER, _INNER),
        ),
        done=norm(f"{at}.norm2"),
    )
