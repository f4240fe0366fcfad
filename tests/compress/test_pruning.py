"""Pruned checkpoints: what `transformers` computes of them, which parts go, and weights that become 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden import FOLDER, Chunk, executor_for, make_step, relative_error, scattered_pages
from headrace.compress.pruning.cut_checkpoint import Cut, CutCheckpoint
from headrace.compress.pruning.depth import drop_layers, layers_to_drop
from headrace.compress.pruning.importance import importance
from headrace.compress.pruning.prune import SAME_SPEED, PruneOrder, PruneReport, float_type, pruned
from headrace.compress.pruning.sparsity import SparsityOrder, prune_matrix, read_pattern
from headrace.errors import CorruptFile, HeadraceError, NumericalError, UnsupportedModel, UsageError
from headrace.loading.export import Export
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types.block_type import Floats
from tiny import tiny_model

WINDOWS = np.random.default_rng(2).integers(2, 60, (3, 40)).astype(np.int32)


def quiet(done: int, total: int) -> None:
    del done, total


def write(source: CheckpointReader, folder: Path, out: Path, work: Path, **asked: Any) -> PruneReport:
    work.mkdir(exist_ok=True)
    with pruned(source, PruneOrder(windows=WINDOWS, **asked), work, quiet) as (reader, report):
        Export(checkpoint=reader, path=folder, name="tiny", type=float_type(source), threads=1).to_folder(
            out, quiet
        )
    return report


def logits(folder: Path) -> NDArray[np.float32]:
    """Of the reference executor, of a row of tokens."""
    with open_checkpoint(folder) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        executor = executor_for("numpy", program, ProgramWeights(checkpoint, program))
        return executor.run(make_step(Chunk(WINDOWS[0], 0, scattered_pages(0))))


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama3", {"drop_layers": "34%"}, {"num_hidden_layers": 2}),
    ("llama2", {"ffn": 0.5}, {"intermediate_size": 40}),
    ("llama_bias", {"ffn": 0.5, "heads": 2}, {"intermediate_size": 40, "num_attention_heads": 2}),
    ("qwen2", {"heads": 2, "drop_layers": "1"}, {"num_attention_heads": 2, "num_hidden_layers": 1}),
    ("qwen2_window", {"drop_layers": "1"}, {"num_hidden_layers": 2}),
    ("qwen3", {"heads": 2}, {"num_attention_heads": 2}),
    ("gemma2", {"drop_layers": "1", "ffn": 0.5}, {"layer_types": ["sliding_attention"]}),
    ("gemma3", {"drop_layers": "1", "heads": 2}, {"num_hidden_layers": 2}),
    ("smollm3", {"drop_layers": "1"}, {"num_hidden_layers": 2}),
    ("gpt2", {"drop_layers": "1"}, {"n_layer": 1}),
    ("falcon", {"ffn": 0.5}, {"ffn_hidden_size": 64}),
    ("gpt_neox", {"ffn": 0.5}, {"intermediate_size": 32}),
    ("mamba2", {"drop_layers": "1"}, {"num_hidden_layers": 1}),
    ("mixtral", {"experts": 4, "drop_layers": "1"}, {"num_local_experts": 4}),
    ("qwen3_moe_mixed", {"experts": 4, "drop_layers": "2"}, {"num_experts": 4}),
    ("gpt_oss", {"experts": 4}, {"num_local_experts": 4}),
    ("deepseek_v3_direct", {"experts": 5}, {"n_routed_experts": 5}),
]


@pytest.mark.parametrize(("golden", "asked", "fields"), CASES, ids=[case[0] for case in CASES])
def test_transformers_computes_the_same(
    tmp_path: Path, golden: str, asked: dict[str, Any], fields: dict[str, Any]
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tiny_model(tmp_path, golden)
    with open_checkpoint(folder) as source:
        report = write(source, folder, tmp_path / "out", tmp_path / "work", **asked)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: config[name] for name in fields} == fields
    assert report.parameters < report.parameters_before and SAME_SPEED not in report.speed
    model, missing = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not missing["missing_keys"] and not missing["mismatched_keys"]
    with torch.no_grad():
        expected = model(torch.from_numpy(WINDOWS[:1].astype(np.int64))).logits[0].numpy()
    assert relative_error(logits(tmp_path / "out"), expected) < 1e-4


def test_layers_of_least_influence_go(tmp_path: Path) -> None:
    """A layer that adds nothing has none."""
    folder = tiny_model(tmp_path, "llama3")
    with open_checkpoint(folder) as source:
        names = {name: name for name in source.tensors}
        still = {
            name: (lambda name=name: np.zeros_like(source.float32(name)))
            for name in names
            if ".layers.1." in name and ("o_proj" in name or "down_proj" in name)
        }
        reader = CutCheckpoint(source, Cut(dict(source.config), names, {}, still))
        found = importance(reader, WINDOWS, quiet)
        assert abs(found.influence[1]) < 1e-6 and min(found.influence[0], found.influence[2]) > 0.05
        cut, dropped = drop_layers(reader, found, 1)
        assert dropped == [1]
        assert cut.names["model.layers.1.mlp.up_proj.weight"] == "model.layers.2.mlp.up_proj.weight"
        after = importance(CutCheckpoint(reader, cut), WINDOWS, quiet)
    np.testing.assert_allclose(after.influence, [found.influence[0], found.influence[2]], atol=1e-6)


def test_channels_that_do_nothing_go(tmp_path: Path) -> None:
    """Without them the logits stay: half of the channels of each MLP, one of two groups of heads."""
    folder = tiny_model(tmp_path, "llama2")
    with open_checkpoint(folder) as source:
        names = {name: name for name in source.tensors}
        dead = np.random.default_rng(3).permutation(80)[:40]

        def muted(name: str, columns: NDArray[np.int64]) -> Floats:
            values = source.float32(name)
            values[:, columns] = 0
            return values

        values = {
            name: (lambda name=name: muted(name, dead)) for name in names if name.endswith("down_proj.weight")
        }
        reader = CutCheckpoint(source, Cut(dict(source.config), names, {}, values))
        Export(checkpoint=reader, path=folder, name="a", type="f32", threads=1).to_folder(
            tmp_path / "muted", quiet
        )
        report = write(reader, folder, tmp_path / "out", tmp_path / "work", ffn=0.5)
        assert report.ffn is not None and report.ffn.least_share > 1 - 1e-9
    assert relative_error(logits(tmp_path / "out"), logits(tmp_path / "muted")) < 1e-5


def inputs(k: int, count: int = 512) -> NDArray[np.float64]:
    random = np.random.default_rng(5)
    mixing = random.standard_normal((k, k)) * 0.3 + np.eye(k)
    return (random.standard_normal((count, k)) @ mixing) * np.exp(random.standard_normal(k))


def order(method: str, share: float = 0.5, pattern: str | None = None) -> SparsityOrder:
    return SparsityOrder(windows=WINDOWS, share=share, pattern=read_pattern(pattern, share), method=method)


def test_each_method_loses_less_than_the_simpler_one() -> None:
    random = np.random.default_rng(6)
    weight, x = random.standard_normal((48, 256)).astype(np.float32), inputs(256)
    moments = x.T @ x
    plain = np.where(np.abs(weight) < np.quantile(np.abs(weight), 0.5), 0, weight)

    def loss(values: NDArray[Any]) -> float:
        return float(np.square(x @ (weight - values).T).sum() / np.square(x @ weight.T).sum())

    for pattern in (None, "2:4"):
        wanda = prune_matrix(weight, moments, order("wanda", pattern=pattern), name="w")
        sparse = prune_matrix(weight, moments, order("sparsegpt", pattern=pattern), name="w")
        assert loss(sparse) < 0.8 * loss(wanda)
        if pattern is None:
            assert loss(wanda) < 0.8 * loss(plain)
        for values in (wanda, sparse):
            assert abs(float((values == 0).mean()) - 0.5) < 1e-3
        kept = wanda != 0
        np.testing.assert_array_equal(wanda[kept], weight[kept])


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_two_of_four(method: str) -> None:
    weight = np.random.default_rng(7).standard_normal((16, 200)).astype(np.float32)
    x = inputs(200)
    values = prune_matrix(weight, x.T @ x, order(method, pattern="2:4"), name="w")
    assert ((values.reshape(16, 50, 4) != 0).sum(axis=2) == 2).all()


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
@pytest.mark.parametrize("kind", ["one token", "dead inputs", "none"])
def test_hard_moments(method: str, kind: str) -> None:
    """A singular Hessian, inputs that were always 0, a text without inputs at all."""
    weight, x = np.random.default_rng(8).standard_normal((8, 64)).astype(np.float32), inputs(64)
    if kind == "one token":
        x = np.repeat(x[:1], 40, axis=0)
    elif kind == "dead inputs":
        x[:, ::3] = 0
    moments = np.zeros((64, 64)) if kind == "none" else x.T @ x
    values = prune_matrix(weight, moments, order(method), name="w")
    assert np.isfinite(values).all() and abs(float((values == 0).mean()) - 0.5) < 0.02


def test_numbers_that_are_none() -> None:
    weight, x = np.ones((4, 8), np.float32), inputs(8)
    weight[1, 2] = np.nan
    with pytest.raises(CorruptFile, match=r"tensor some\.name has weights that are no finite numbers"):
        prune_matrix(weight, x.T @ x, order("wanda"), name="some.name")
    with pytest.raises(NumericalError, match=r"the inputs of some\.name overflow"):
        prune_matrix(np.ones((4, 8), np.float32), np.full((8, 8), np.inf), order("wanda"), name="some.name")


@pytest.mark.parametrize("golden", ["llama3_tied", "mixtral"])
def test_sparse_checkpoints(tmp_path: Path, golden: str) -> None:
    """The table that is the output too stays, and so do routers; experts lose their smallest weights."""
    folder = tiny_model(tmp_path, golden)
    with open_checkpoint(folder) as source:
        report = write(source, folder, tmp_path / "out", tmp_path / "work", sparsity=0.5, pattern="2:4")
        assert report.speed == SAME_SPEED and report.sparsity is not None
        assert report.sparsity.reached == 0.5 and report.parameters == report.parameters_before
        assert report.sparsity.plain == (48 if golden == "mixtral" else 0)
        with open_checkpoint(tmp_path / "out") as written:
            for name in source.tensors:
                before, after = source.float32(name), written.float32(name)
                if "proj" in name or ".experts." in name:
                    assert float((after == 0).mean()) == 0.5, name
                else:
                    np.testing.assert_array_equal(after, before, name)


def test_the_order_of_options(tmp_path: Path) -> None:
    """All at once, each on what the others left."""
    folder = tiny_model(tmp_path, "llama3")
    with open_checkpoint(folder) as source:
        report = write(
            source,
            folder,
            tmp_path / "out",
            tmp_path / "work",
            drop_layers="1",
            ffn=0.5,
            heads=2,
            sparsity=0.3,
        )
    assert report.layers is not None and report.layers.after == 2 and len(report.layers.influence) == 3
    assert "fewer weights" in report.speed and SAME_SPEED in report.speed
    assert np.isfinite(logits(tmp_path / "out")).all()


BAD: list[tuple[str, dict[str, Any], type[HeadraceError], str]] = [
    ("llama2", {}, UsageError, "nothing is to be pruned"),
    ("llama2", {"drop_layers": "100%"}, UsageError, "at least one must go and one must stay"),
    ("llama2", {"drop_layers": "10%"}, UsageError, "is 0 of 2 layers"),
    ("llama2", {"drop_layers": "half"}, UsageError, "give a share such as 25%"),
    ("llama2", {"drop_layers": "1.5"}, UsageError, "give a share such as 25%"),
    ("llama2", {"ffn": 1.5}, UsageError, "between 0 and 1"),
    ("llama2", {"ffn": float("nan")}, UsageError, "between 0 and 1"),
    ("llama2", {"ffn": 0.001}, UsageError, "leaves 0 of 80 channels"),
    ("llama2", {"heads": 0}, UsageError, "at least one must stay"),
    ("llama2", {"heads": 4}, UsageError, "this model has 4 query heads"),
    ("qwen2", {"heads": 3}, UsageError, "give a smaller multiple of"),
    ("llama2", {"experts": 2}, UnsupportedModel, "is no mixture of experts"),
    ("mixtral", {"experts": 1}, UsageError, "of which a token uses 2"),
    ("mixtral", {"ffn": 0.5}, UnsupportedModel, "--experts leaves out experts"),
    ("deepseek_v3", {"experts": 4}, UnsupportedModel, "in 4 groups"),
    ("phi3", {"heads": 2}, UnsupportedModel, "parts that are not known"),
    ("phi3", {"ffn": 0.5}, UnsupportedModel, "matrices of their own"),
    ("olmo2", {"heads": 2}, UnsupportedModel, "parts that are not known"),
    ("mamba2", {"ffn": 0.5}, UnsupportedModel, "no attention or MLP"),
    ("llama2", {"ffn": 0.5, "pattern": "2:4"}, UsageError, "give --sparsity too"),
    ("llama2", {"sparsity": 0.5, "pattern": "4:2"}, UsageError, "give kept:group"),
    ("llama2", {"sparsity": 0.6, "pattern": "2:4"}, UsageError, "--sparsity is 0.6"),
    ("llama2", {"sparsity": 0.5, "method": "magic"}, UsageError, "use sparsegpt or wanda"),
]


@pytest.mark.parametrize(("golden", "asked", "kind", "message"), BAD)
def test_what_is_refused(
    tmp_path: Path, golden: str, asked: dict[str, Any], kind: type[HeadraceError], message: str
) -> None:
    with open_checkpoint(FOLDER / golden) as source, pytest.raises(kind, match=message):
        write(source, FOLDER / golden, tmp_path / "out", tmp_path / "work", **asked)
    assert not (tmp_path / "out").exists()


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    with open_checkpoint(FOLDER / "llama2") as source:
        names = {name: name for name in source.tensors}
        bad = "model.layers.1.mlp.up_proj.weight"

        def broken() -> Floats:
            values = source.float32(bad)
            values[3, 3] = np.nan
            return values

        reader = CutCheckpoint(source, Cut(dict(source.config), names, {}, {bad: broken}))
        for asked in ({"drop_layers": "1"}, {"ffn": 0.5}, {"sparsity": 0.5}):
            with pytest.raises(HeadraceError, match=r"layers\.1\.mlp|layer 1"):
                write(reader, FOLDER / "llama2", tmp_path / "out", tmp_path / "work", **asked)


def test_texts_that_say_little() -> None:
    with open_checkpoint(FOLDER / "llama2") as source:
        with pytest.raises(UsageError, match="has 1 tokens"):
            importance(source, np.array([[5]], np.int32), quiet)
        found = importance(source, np.array([[5] * 40], np.int32), quiet)
    assert np.isfinite(found.influence).all()


def test_shares_of_layers() -> None:
    assert [layers_to_drop(text, 8) for text in ("25%", "2", "12.5%", "7")] == [2, 2, 1, 7]
