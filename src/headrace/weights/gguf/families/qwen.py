"""Qwen 2, Qwen 3 and Qwen 3 with experts."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, boolean, integer
from headrace.weights.gguf.architecture import EXPERTS, HEAD_NORMS, LLAMA, TOP, Architecture, ConfigField
from headrace.weights.gguf.metadata_keys import MetadataKeys


def _write(config: Config) -> dict[str, object]:
    if boolean(config, "use_sliding_window", False):
        raise UnsupportedModel("which layers have a window has no key in GGUF: write safetensors instead")
    return {}


def _read_mixture(keys: MetadataKeys, fields: Config) -> Config:
    return {"decoder_sparse_step": 1, "mlp_only_layers": []}


def _write_mixture(config: Config) -> dict[str, object]:
    if config.get("mlp_only_layers") or integer(config, "decoder_sparse_step", 1) != 1:
        raise UnsupportedModel("which layers have experts has no key in GGUF: write safetensors instead")
    return _write(config)


_QWEN2 = Architecture(
    name="qwen2",
    model_types=("qwen2",),
    top=TOP,
    block=LLAMA,
    write=_write,
)
_QWEN3 = replace(_QWEN2, name="qwen3", model_types=("qwen3",), block=LLAMA | HEAD_NORMS)
ARCHITECTURES = (
    _QWEN2,
    _QWEN3,
    replace(
        _QWEN3,
        name="qwen3moe",
        model_types=("qwen3_moe",),
        block=LLAMA | HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"},
        experts=EXPERTS,
        fields=(
            ConfigField("num_experts", "expert_count"),
            ConfigField("num_experts_per_tok", "expert_used_count"),
            ConfigField("moe_intermediate_size", "expert_feed_forward_length"),
            ConfigField("norm_topk_prob", "expert_weights_norm", "flag", True),
        ),
        read=_read_mixture,
        write=_write_mixture,
    ),
)
