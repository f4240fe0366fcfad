"""Configs of encoders: what is refused by name, positions after padding, and buckets of distances."""

from __future__ import annotations

import json

import numpy as np
import pytest

from golden import FOLDER
from headrace.errors import UnsupportedModel
from headrace.models.registry import find_model
from headrace.models.relative import deberta_buckets, t5_buckets


def config_of(name: str) -> dict[str, object]:
    return json.loads((FOLDER / "encoders" / name / "config.json").read_text())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("deberta_v3", {"conv_kernel_size": 3}, "deberta-v2-xlarge"),
        ("deberta_v3", {"attention_head_size": 16}, "attention_head_size"),
        ("deberta_v3", {"pos_att_type": "p2p"}, "pos_att_type"),
        ("deberta_v3", {"position_buckets": 1 << 20}, "position_buckets"),
        ("mpnet", {"relative_attention_num_buckets": 8}, "expected 32"),
        ("roberta", {"max_position_embeddings": 2}, "leaves no position"),
        ("xlm_roberta", {"position_embedding_type": "rotary"}, "rotary"),
    ],
)
def test_variants_are_refused_by_name(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        find_model(config_of(name) | change)


def test_positions_begin_after_the_padding_token() -> None:
    assert find_model(config_of("roberta")).config.context == 64


def test_both_forms_of_pos_att_type() -> None:
    config = config_of("deberta_v3")
    listed, joined = (find_model(config | {"pos_att_type": k}).config for k in (["p2c", "c2p"], "p2c|c2p"))
    assert getattr(listed, "kinds", 0) == getattr(joined, "kinds", 1)


def test_buckets_equal_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    mpnet = pytest.importorskip("transformers.models.mpnet.modeling_mpnet")
    for length, span, longest in ((512, 256, 512), (1024, 256, 512), (64, 8, 64)):
        rows = torch.zeros(length, 1)
        table = deberta.build_relative_position(rows, rows, span, longest)[0]
        both = torch.cat([table[0].flip(0), table[1:, 0]]).numpy()  # distances from -(length - 1) on
        assert np.array_equal(
            np.clip(both + span, 0, 2 * span - 1), deberta_buckets(length - 1, span, longest)
        )
    key_minus_query = torch.arange(511, -512, -1)
    theirs = mpnet.MPNetEncoder.relative_position_bucket(key_minus_query, 32, 128).numpy()
    assert np.array_equal(theirs, t5_buckets(511, 32, 128))
