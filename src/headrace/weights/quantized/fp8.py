"""FP8 checkpoints: E4M3 weights with one scale, one per output, or one per block (DeepSeek, Qwen).

Sources: the fine-grained FP8 of transformers (`weight_scale_inv`, a factor in spite of its name), fbgemm and
modelopt (`weight_scale`). Scales of activations are for other machines' products and change no weight.
"""

from __future__ import annotations

from headrace.errors import CorruptFile
from headrace.weights.config_json import Config, integers
from headrace.weights.quantized.byte_codes import ByteCodes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader

_SCALES = ("weight_scale_inv", "weight_scale")


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every FP8 weight, by name; CorruptFile for one without scales."""
    size = integers(config, "weight_block_size")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise CorruptFile(f"quantization_config has weight_block_size {list(size)}, two sizes expected")
    block = None if size is None else (size[0], size[1])
    found: dict[str, QuantizedTensor] = {}
    for layer in stored.with_suffix(".weight"):
        if stored.tensors[f"{layer}.weight"].dtype == "F8_E4M3":
            scale = next((name for name in _SCALES if f"{layer}.{name}" in stored), _SCALES[0])
            found[f"{layer}.weight"] = ByteCodes(stored, layer, scale, block=block)
    return found
