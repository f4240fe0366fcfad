"""Configs of encoders: what is refused by name, positions after padding, and buckets of distances."""

from __future__ import annotations

import json
from typing import Any

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
        ("deberta_v3", {"max_position_embeddings": 1 << 30}, "the farthest distance may be 65,536"),
        ("mpnet", {"relative_attention_num_buckets": 8}, "expected 32"),
        ("roberta", {"max_position_embeddings": 2}, "leaves no position"),
        ("xlm_roberta", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("roberta", {"position_embedding_type": "alibi"}, "alibi"),
        ("jina_v2", {"feed_forward_type": "original"}, "feed_forward_type 'original'"),
        ("jina_v2", {"max_position_embeddings": 1 << 30}, "1,073,741,824 distances"),
        ("jina_v3_native", {"position_embedding_type": "absolute"}, "'rotary'"),
        ("nomic", {"prenorm": True}, "prenorm"),
        ("nomic", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        ("nomic", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction 0.5"),
        ("nomic", {"activation_function": "gelu"}, "activation_function 'gelu'"),
        ("nomic", {"mlp_fc1_bias": True}, "mlp_fc1_bias"),
        ("nomic", {"num_experts": 8, "moe_every_n_layers": 2}, "mixture of experts"),
        ("gte_ntk", {"position_embedding_type": "absolute"}, "'absolute'"),
        ("gte_ntk", {"layer_norm_type": "rms_norm"}, "'rms_norm'"),
        ("gte_ntk", {"logn_attention_scale": True}, "logn_attention_scale"),
        ("gte_ntk", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("llama_bidirectional", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups"),
        ("t5", {"feed_forward_proj": "half-gelu"}, "feed_forward_proj"),
        ("t5", {"relative_attention_num_buckets": 7}, "7 buckets"),
        ("t5", {"relative_attention_max_distance": 2}, "up to 2"),
    ],
)
def test_variants_are_refused_by_name(name: str, change: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        find_model(config_of(name) | change)


def test_attention_to_both_sides_is_refused_with_a_pooling_too() -> None:
    config = config_of("llama_bidirectional") | {"use_bidirectional_attention": True}
    with pytest.raises(UnsupportedModel, match="use_bidirectional_attention"):
        find_model(config, pooling="last")


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


def test_a_context_that_would_need_other_frequencies_ends_before(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("nomic") | {"n_positions": 128, "max_trained_positions": 96}
    assert find_model(config).config.context == 128
    assert find_model(config | {"rotary_scaling_factor": 2.0}).config.context == 96
    assert "rotary_scaling_factor is not applied" in caplog.text


def test_windows_of_embedding_gemma_count_both_sides() -> None:
    config = config_of("gemma3_embedding")
    read: Any = find_model(config).config
    assert read.windows == (5, 5, 0) and read.bidirectional  # sliding_window 8
    causal: Any = find_model(config | {"use_bidirectional_attention": False}).config
    assert causal.windows == (8, 8, 0) and not causal.bidirectional


def test_buckets_of_the_farthest_distances_are_the_last() -> None:
    """The table ends at `max_distance`, however long texts may be."""
    for span, farthest in ((16, 64), (256, 512), (256, 65536)):
        whole = deberta_buckets(farthest + 1000, span, farthest)
        assert set(whole[:1001].tolist()) == {0} and set(whole[-1001:].tolist()) == {2 * span - 1}
