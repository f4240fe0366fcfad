"""Quantized safetensors: what each scheme's tensors mean, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.compress.own_order import in_own_order
from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types import BY_NAME, dequantize
from quantized_files import E2M1, SCHEMES, Scheme, Tensors, gptq, save, write_config, write_model


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_bit_equal(tmp_path: Path, name: str) -> None:
    plain = write_model(tmp_path, SCHEMES[name])
    with open_checkpoint(tmp_path) as checkpoint:
        assert set(checkpoint.tensors) == set(plain)
        for tensor, expected in plain.items():
            order = checkpoint.input_order(tensor)
            if order is not None:
                assert name.endswith("act_order")
                expected = expected[:, order]
            assert checkpoint.info(tensor).shape == expected.shape
            # Sums of rotated numbers depend on their order.
            error = 1e-6 if name.startswith("rotated") and "_proj" in tensor else 0
            np.testing.assert_allclose(checkpoint.float32(tensor), expected, 0, error, err_msg=tensor)


@pytest.mark.parametrize("name", SCHEMES)
def test_rows_are_those_of_the_whole(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, SCHEMES[name])
    tensor = "model.layers.1.self_attn.v_proj.weight"
    with open_checkpoint(tmp_path) as checkpoint:
        kind = BY_NAME[checkpoint.row_dtype(tensor)]
        whole = checkpoint.float32(tensor)
        for start, count in ((0, 32), (5, 1), (3, 21), (31, 1)):
            raw = np.empty(count * kind.row_bytes(64), np.uint8)
            checkpoint.read_rows(tensor, start, count, raw.data)
            rows = dequantize(kind, raw).reshape(count, 64)
            np.testing.assert_array_equal(rows, whole[start : start + count])


def test_experts_of_gpt_oss_become_rows_of_one_matrix(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (3, 40, 2, 32), np.uint8)
    exponent = random.integers(0, 250, (3, 40, 2), np.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    write_config(tmp_path, {"quant_method": "mxfp4"})
    blocks = codes[..., ::2] | codes[..., 1::2] << 4
    save(tmp_path / "model.safetensors", {f"{name}_blocks": blocks, f"{name}_scales": exponent})
    expected = E2M1[codes] * np.ldexp(np.float32(1), exponent.astype(int) - 127)[..., None]
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == [name]
        np.testing.assert_array_equal(checkpoint.float32(name), expected.reshape(120, 64))
        raw = np.empty(50 * 2 * 17, np.uint8)
        checkpoint.read_rows(name, 35, 50, raw.data)
        rows = dequantize(BY_NAME["MXFP4"], raw).reshape(50, 64)
        np.testing.assert_array_equal(rows, expected.reshape(120, 64)[35:85])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptqmodel"}, "quant_method 'gptqmodel'.*nearest that is: 'gptq'"),
        ({}, "quant_method 'None'"),
        ({"quant_method": "gptq", "bits": 3}, "GPTQ with 3 bits.*4 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "GPTQ format 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 8}}}, "'dynamic'"),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:x"}, "packed as"),
        (
            {"quant_method": "auto-round", "bits": 4, "extra_config": {"a.b": {"bits": 8}}},
            "'a.b' bits or groups of its own",
        ),
        ({"quant_method": "awq", "version": "gemv"}, "AWQ of the version 'gemv'.*'gemm'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format 'marlin-24'"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-x"}}, "'sparse-x'"),
        ({"quant_method": "headrace", "format": "rotated-2"}, "a newer Headrace has written it"),
    ],
)
def test_unknown_settings_name_the_nearest(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    write_model(tmp_path, SCHEMES["gptq"])
    write_config(tmp_path, settings)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


LAYER = "model.layers.0.mlp.down_proj"


def changed(folder: Path, scheme: str, change: Callable[[Tensors], None]) -> CheckpointReader:
    """The scheme's model with one layer's stored tensors, without the layer's name, changed."""

    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        stored, plain = SCHEMES[scheme].write(random, n, k)
        if k == 128:
            change(stored)
        return stored, plain

    write_model(folder, Scheme(SCHEMES[scheme].settings, write))
    return open_checkpoint(folder)


def set_first(name: str, value: float) -> Callable[[Tensors], None]:
    return lambda stored: stored[name].reshape(-1).__setitem__(0, value)


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda stored: stored.__delitem__(name)


def narrow(stored: Tensors) -> None:
    stored["weight_codes"] = stored["weight_codes"][:, :31]


def flip_bits(stored: Tensors) -> None:
    stored["bitmask"][0, 0] ^= 1


def cut(name: str) -> Callable[[Tensors], None]:
    return lambda stored: stored.__setitem__(name, stored[name][:-1])


@pytest.mark.parametrize(
    ("scheme", "change", "message"),
    [
        ("gptq", set_first("scales", np.nan), "scales' holds 1 numbers that are NaN"),
        ("gptq", set_first("g_idx", -1), "groups -1 to 3, there are 0 to 3"),
        ("gptq", set_first("g_idx", 4), "groups 0 to 4, there are 0 to 3"),
        ("gptq", cut("scales"), r"scales' is F16 of shape \[3, 64\], expected F16 .*shape \[4, 64\]"),
        ("gptq", cut("qzeros"), r"qzeros' is I32 of shape \[3, 8\]"),
        ("gptq", cut("g_idx"), r"g_idx' is I32 of shape \[127\], expected I32 of shape \[128\]"),
        ("gptq", drop("qzeros"), "no tensor '.*qzeros'"),
        ("gptq_act_order", drop("g_idx"), "g_idx', which desc_act asks for"),
        ("awq", drop("scales"), "no tensor '.*scales'"),
        ("awq", set_first("scales", np.inf), "NaN or infinite"),
        ("fp8_blocks", cut("weight_scale_inv"), r"weight_scale_inv' has the shape \[1, 4\]"),
        ("fp8_blocks", drop("weight_scale_inv"), "no tensor '.*weight_scale_inv'"),
        ("ct_int4", drop("weight_shape"), "no tensor '.*weight_shape'"),
        ("ct_int4", set_first("weight_shape", 2**62), "weight_shape says"),
        ("ct_int4_zeros", cut("weight_zero_point"), "weight_zero_point' is I32 of shape"),
        ("ct_int8", set_first("weight_scale", np.nan), "NaN or infinite"),
        ("ct_nvfp4", set_first("weight_global_scale", 0), "one above 0 expected"),
        ("ct_mxfp4", set_first("weight_scale", 255), "1 scales that are NaN"),
        ("rotated_4", set_first("weight_groups", 18), "multipliers and offsets that no int4 weight has"),
        ("rotated_4", cut("weight_groups"), r"weight_groups' is U8 of shape \[63, 8\]"),
        ("rotated_4", drop("weight_scale"), "no tensor '.*weight_scale'"),
        ("rotated_4", narrow, "62 inputs, a multiple of 32 expected"),
        ("rotated_8", set_first("weight_scale", np.nan), "NaN or infinite"),
        ("nvfp4", cut("weight_scale"), "weight_scale' is F8_E4M3 of shape"),
        ("ct_sparse", set_first("row_offsets", 1), "row_offsets' has rows that begin outside"),
        ("ct_sparse", set_first("row_offsets", -(2**63)), "row_offsets' has rows that begin outside"),
        ("ct_sparse", flip_bits, "row_offsets' has another number of weights in row 0"),
        ("ct_sparse", cut("compressed"), "row_offsets' has another number of weights in row 63"),
        ("ct_sparse", cut("row_offsets"), r"row_offsets' is I64 of shape \[63\]"),
        ("ct_sparse", set_first("shape", 2**62), r"bitmask' is U8 of shape \[64, 16\]"),
        ("ct_sparse", drop("bitmask"), "no tensor '.*bitmask'"),
        ("ct_sparse_24", flip_bits, "bitmask' has not 2 of each 4 bits in row 0"),
        ("ct_sparse_24", cut("compressed"), "compressed' is F16 of shape"),
        ("ct_sparse_24", set_first("shape", -1), "sizes above 0 expected"),
    ],
)
def test_what_does_not_fit_together_is_corrupt(
    tmp_path: Path, scheme: str, change: Callable[[Tensors], None], message: str
) -> None:
    with pytest.raises(CorruptFile, match=message), changed(tmp_path, scheme, change) as checkpoint:
        checkpoint.float32(f"{LAYER}.weight")


def test_what_writes_weights_reads_inputs_in_their_own_order(tmp_path: Path) -> None:
    """GPTQ with `desc_act`: without that, a checkpoint made of it would have its columns mixed up."""
    plain, name = write_model(tmp_path, SCHEMES["gptq_act_order"]), f"{LAYER}.weight"
    with open_checkpoint(tmp_path) as stored:
        own = in_own_order(stored)
        assert stored.input_order(name) is not None and own.input_order(name) is None
        for tensor, expected in plain.items():
            np.testing.assert_array_equal(own.float32(tensor), expected)
        assert own.row_dtype(name) == "F32"
        rows = np.empty((5, 128), np.float32)
        own.read_rows(name, 40, 5, rows.reshape(-1).view(np.uint8).data)
        np.testing.assert_array_equal(rows, plain[name][40:45])
    write_model(tmp_path / "gptq", SCHEMES["gptq"])
    with open_checkpoint(tmp_path / "gptq") as stored:
        assert in_own_order(stored) is stored


def test_groups_that_are_no_multiple_of_32_are_unsupported(tmp_path: Path) -> None:
    scheme = SCHEMES["gptq"].settings | {"group_size": 16}
    with pytest.raises(UnsupportedModel, match=r"group of 16 inputs; supported are multiples of 32"):
        write_model(tmp_path, Scheme(scheme, gptq(group=16)))
        open_checkpoint(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(SCHEMES)), st.data())
def test_damage_is_a_typed_error_or_harmless(
    tmp_path: Path, models: dict[str, Tensors], scheme: str, data: st.DataObject
) -> None:
    """Stored tensors dropped, cut, given another type, or with random bytes."""
    stored = dict(models[scheme])
    fields = sorted(name for name in stored if name.startswith(LAYER))
    for name in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique=True)):
        array = stored.pop(name)
        match data.draw(st.sampled_from(["drop", "cut", "type", "bytes", "flat"])):
            case "cut":
                stored[name] = array[:-1] if array.shape else array
            case "type":
                stored[name] = array.reshape(-1).view(np.uint8)
            case "bytes":
                raw = bytearray(array.tobytes())
                place = data.draw(st.integers(0, len(raw) - 1))
                raw[place] ^= 1 << data.draw(st.integers(0, 7))
                stored[name] = np.frombuffer(raw, array.dtype).reshape(array.shape)
            case "flat":
                stored[name] = array.reshape(-1)
    write_config(tmp_path, SCHEMES[scheme].settings)
    save(tmp_path / "model.safetensors", stored)
    try:
        with open_checkpoint(tmp_path) as checkpoint:
            assert checkpoint.float32(f"{LAYER}.weight").ndim == 2
    except (CorruptFile, UnsupportedModel) as error:
        assert LAYER in error.message


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensors]:
    """The stored tensors of one layer in each scheme."""
    random = np.random.default_rng(2)
    return {
        name: {f"{LAYER}.{field}": array for field, array in scheme.write(random, 32, 64)[0].items()}
        for name, scheme in SCHEMES.items()
    }
