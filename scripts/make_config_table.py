"""Write src/headrace/models/config_classes.json: the fields of the config classes of `transformers`.

Needs transformers (`pip install headrace[train]`). For each model type of Headrace: other names of fields
(`attribute_map`), and of each field that may change what a model computes its kind, whether it may be null,
and its default. `tests/models/test_config_classes.py` compares the file with the installed version.
"""

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MODELS = Path(__file__).parent.parent / "src" / "headrace" / "models"
# Wrappers whose text model is another model type: their own fields count, too.
WRAPPERS = ("gemma3",)
# Fields that matter to training, to token ids, to heads of other tasks or to `transformers` alone.
IGNORED = re.compile(
    r"(bos|eos|pad|cls|sep)_token_id|.*(dropout|pdrop)(_prob)?|initializer_.*|use_cache|pretraining_tp"
    r"|(router_aux|sparse_pred|deterministic|summary|classifier|decoder_bias|residual_in_fp32|time_step_(?!limit)"
    r"|rescale_prenorm|chunk_size|reorder_and_upcast|output_router).*|sparse_prediction|.*_(token_index|config)"
    r"|mm_tokens_per_image|router_jitter_noise"
)
# Names of fields in configs of a model type that its class in `transformers` does not know.
OTHER_NAMES: Mapping[str, dict[str, str]] = {
    "nomic_bert": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
    },
}
KINDS: Mapping[object, str] = {
    bool: "flag",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    tuple: "list",
    dict: "object",
    typing.Literal: "text",
}


def kinds_of(hint: Any) -> set[str]:
    """The JSON kinds that an annotation allows, `null` among them."""
    if hint is type(None):
        return {"null"}
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(kinds_of(part) for part in typing.get_args(hint)))
    if origin is typing.Annotated:
        return kinds_of(typing.get_args(hint)[0])
    kind = KINDS.get(origin or hint)
    if kind is None and isinstance(hint, type) and issubclass(hint, dict):
        kind = "object"
    if kind is None and typing.is_typeddict(hint):
        kind = "object"
    return {kind} if kind is not None else set()


def field_of(hint: Any, default: object) -> list[object] | None:
    """[kind, may be null, default], or None for a field that no config.json can hold, or in several kinds."""
    kinds = kinds_of(hint)
    named = kinds - {"null"}
    if len(named) != 1:  # none, or one of several (pos_att_type): the model's file reads it
        return None
    (kind,) = named
    if isinstance(default, list | tuple) and not all(math.isfinite(entry) for entry in default):
        default = None
    return [kind, "null" in kinds, default]


def table_of(config_class: type[PreTrainedConfig]) -> dict[str, object]:
    """Aliases and fields of one class."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    fields: dict[str, object] = {}
    for field in dataclasses.fields(config_class):
        if field.name in common or IGNORED.fullmatch(field.name):
            continue
        default = None if field.default is dataclasses.MISSING else field.default
        found = field_of(field.type, default)
        if found is not None:
            fields[field.name] = found
    theta = config_class.default_theta
    if "rope_parameters" in fields and isinstance(theta, int | float):
        fields["rope_theta"] = ["number", True, float(theta)]
    aliases = {
        name: other
        for name, other in config_class.attribute_map.items()
        if not IGNORED.fullmatch(name) and not IGNORED.fullmatch(other)
    }
    return {"aliases": aliases | OTHER_NAMES.get(config_class.model_type, {}), "fields": fields}


def make_table() -> dict[str, object]:
    """The whole file's content."""
    names = [*(path.stem for path in sorted(MODELS.glob("*.py"))), *WRAPPERS]
    return {name: table_of(CONFIG_MAPPING[name]) for name in sorted(names) if name in CONFIG_MAPPING}


def text_of(table: Mapping[str, object]) -> str:
    """JSON with one line for each field, so that a change of one default is a change of one line."""
    parts: list[str] = []
    for name, entry in table.items():
        assert isinstance(entry, dict)
        aliases = json.dumps(entry["aliases"])
        fields = ",\n".join(
            f"  {json.dumps(field)}: {json.dumps(of)}" for field, of in entry["fields"].items()
        )
        parts.append(f'"{name}": {{"aliases": {aliases}, "fields": {{\n{fields}\n}}}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    path = MODELS / "config_classes.json"
    path.write_text(text_of(make_table()))
    print(f"{path.name}: of transformers {transformers.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
