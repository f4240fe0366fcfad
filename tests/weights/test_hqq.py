"""HQQ checkpoints: every width and axis, as `hqq` itself unpacks them; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.checkpoint import open_checkpoint
from quantized_files import SCHEMES, Scheme, Tensors, hqq, write_model

LAYER = "model.layers.0.mlp.down_proj"
WIDTHS = (8, 6, 5, 4, 3, 2, 1.58, 1)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("as_float", [False, True])
def test_every_width(tmp_path: Path, bits: float, axis: int, as_float: bool) -> None:
    scheme = Scheme(SCHEMES["hqq"].settings, hqq(bits=bits, axis=axis, group=32, as_float=as_float))
    plain = write_model(tmp_path, scheme)
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == set(plain)
        for name, expected in plain.items():
            np.testing.assert_array_equal(checkpoint.float32(name), expected, err_msg=name)
            if "_proj" in name:
                assert (checkpoint.info(name).dtype, checkpoint.row_dtype(name)) == ("HQQ", "F32")
                n, k = expected.shape
                for start, count in ((0, 1), (n // 2 - 3, 7), (n - 1, 1)):
                    rows = np.empty((count, k), np.float32)
                    checkpoint.read_rows(name, start, count, rows.reshape(-1).view(np.uint8).data)
                    np.testing.assert_array_equal(rows, expected[start : start + count])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", WIDTHS)
def test_hqq_gives_the_same(tmp_path: Path, bits: float, axis: int) -> None:
    """The package itself packs and dequantizes; its own widths are what the readers' tests draw."""
    torch = pytest.importorskip("torch", reason="hqq needs torch")
    quantize = pytest.importorskip("hqq.core.quantize", reason="pip install hqq: it is the witness")
    linear = torch.nn.Linear(128, 64, bias=False)
    config = quantize.BaseQuantizeConfig(nbits=bits, group_size=64, axis=axis)
    layer = quantize.HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu")

    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        if (n, k) != (64, 128):
            return hqq(bits=bits, axis=axis, group=32)(random, n, k)
        stored = {name: tensor.numpy() for name, tensor in layer.state_dict().items() if tensor is not None}
        return stored, layer.dequantize().numpy()

    plain = write_model(tmp_path, Scheme(SCHEMES["hqq"].settings, write))
    with open_checkpoint(tmp_path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.float32(f"{LAYER}.weight"), plain[f"{LAYER}.weight"])


def test_groups_across_rows(tmp_path: Path) -> None:
    """A group of 256 weights is two or four rows."""
    plain = write_model(tmp_path, Scheme(SCHEMES["hqq"].settings, hqq(bits=4, axis=1, group=256)))
    with open_checkpoint(tmp_path) as checkpoint:
        for name, expected in plain.items():
            np.testing.assert_array_equal(checkpoint.float32(name), expected)


@pytest.mark.parametrize(
    ("field", "value", "kind", "message"),
    [
        ("quant_zero", np.array(1, np.uint8), UnsupportedModel, "quant_zero' is true"),
        ("scale_q", np.zeros((2, 2), np.uint8), UnsupportedModel, "scale_q': HQQ with quantized"),
        ("channel_wise", np.array(0, np.uint8), UnsupportedModel, "channel_wise' is false"),
        ("nbits", np.array(7, np.int32), UnsupportedModel, "nbits' is 7: HQQ with 8, 6, 5, 4"),
        ("packing", np.frombuffer(b"4bit_i32", np.uint8), UnsupportedModel, "packing' is b'4bit_i32'"),
        ("packing", np.zeros(100, np.uint8), UnsupportedModel, "packing' is b''"),
        ("axis", np.array(2, np.int32), CorruptFile, "axis' is 2, 0 or 1"),
        ("group_size", np.array(0, np.int32), CorruptFile, "group_size' is 0"),
        ("group_size", np.array(-8, np.int32), CorruptFile, "group_size' is -8"),
        ("group_size", np.array(12, np.int32), UnsupportedModel, "multiples of 8"),
        ("group_size", np.array(1 << 30, np.int32), CorruptFile, "no part of 64 x 128"),
        ("shape", np.array([1 << 40, 1 << 40], np.int64), CorruptFile, "W_q' is U8 of shape"),
        ("shape", np.array([-64, -128], np.int64), CorruptFile, "sizes above 0"),
        ("scale", np.full((256, 1), np.nan, np.float16), CorruptFile, "scale' holds 4 numbers that are NaN"),
        ("zero", np.zeros((255, 1), np.float16), CorruptFile, "zero' is F16 of shape"),
        ("W_q", np.zeros((128, 31), np.uint8), CorruptFile, "W_q' is U8 of shape"),
        ("shape", None, CorruptFile, "no tensor '.*shape'"),
        ("nbits", None, CorruptFile, "no tensor '.*nbits'"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, field: str, value: Any, kind: type[Exception], message: str
) -> None:
    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        stored, plain = SCHEMES["hqq"].write(random, n, k)
        if k == 128:
            stored[field] = value
            stored = {name: array for name, array in stored.items() if array is not None}
        return stored, plain

    write_model(tmp_path, Scheme(SCHEMES["hqq"].settings, write))
    with pytest.raises(kind, match=message), open_checkpoint(tmp_path) as checkpoint:
        checkpoint.read_rows(f"{LAYER}.weight", 0, 1, memoryview(bytearray(512)))
