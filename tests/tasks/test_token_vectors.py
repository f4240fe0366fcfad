"""Late interaction, sparse vectors, Dense modules and prompts, against plain `transformers` and NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from head_models import head_model
from headrace import LLM
from headrace.errors import CorruptFile, InvalidRequest, UnsupportedModel
from headrace.loading.export import Export
from headrace.tasks.late_interaction import max_sim
from headrace.weights.checkpoint import open_checkpoint

RANDOM = np.random.default_rng(0)
QUERY_LENGTH = 12


def add_module(folder: Path, kinds: list[str], **configs: dict[str, object]) -> None:
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"x.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    for i, kind in enumerate(kinds[1:], 1):
        (folder / f"{i}_{kind}").mkdir(exist_ok=True)
        (folder / f"{i}_{kind}/config.json").write_text(json.dumps(configs.get(kind, {})))


def states_of(folder: Path, ids: list[int], seen: int | None = None) -> Any:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    mask = torch.tensor([[int(seen is None or i < seen) for i in range(len(ids))]])
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), attention_mask=mask).last_hidden_state[0].numpy()


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = head_model(tmp_path_factory.mktemp("late"), "encoders/bert", architectures=["HF_ColBERT"])
    weights = load_file(folder / "model.safetensors")
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    weights["linear.weight"] = RANDOM.standard_normal((8, hidden), np.float32)
    save_file(weights, folder / "model.safetensors")
    settings = {"query_maxlen": QUERY_LENGTH, "dim": 8, "attend_to_mask_tokens": False}
    (folder / "artifact.metadata").write_text(json.dumps(settings))
    return folder


def test_colbert_reads_queries_and_documents(colbert: Path) -> None:
    weight = load_file(colbert / "model.safetensors")["linear.weight"]
    with LLM(colbert, cache_dir=None) as llm:
        id_of = llm.model.tokenizer.id_of
        ids = llm.model.tokenizer.encode("a bc.")
        marked = {
            role: [ids[0], id_of(mark), *ids[1:]]
            for role, mark in (("query", "[unused0]"), ("document", "[unused1]"))
        }
        seen = len(marked["query"])
        query_ids = marked["query"] + [id_of("[MASK]")] * (QUERY_LENGTH - seen)
        expected = states_of(colbert, query_ids, seen) @ weight.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        [query], [document] = llm.token_vectors("a bc.", role="query"), llm.token_vectors("a bc.")
        assert query.shape == (QUERY_LENGTH, 8)
        assert np.abs(query - expected).max() <= 1e-4
        expected = states_of(colbert, marked["document"]) @ weight.T
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        kept = [i for i, token in enumerate(marked["document"]) if token not in (id_of("."), id_of("##."))]
        kept = [i for i, token in enumerate(marked["document"]) if token != id_of(".")]
        assert len(kept) == len(expected) - 1
        assert np.abs(document - expected[kept]).max() <= 1e-4
        assert max_sim(document, document) == pytest.approx(len(document), abs=1e-3)
        several = llm.token_vectors(["a bc.", "x"], role="query")
        assert np.array_equal(several[0], query)
        with pytest.raises(InvalidRequest, match="role is 'answer'"):
            llm.token_vectors("a", role="answer")  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidRequest, match="it can make a vector of each token"):
            llm.embed("a")


def test_reranking_by_late_interaction(colbert: Path) -> None:
    """The sum over the query's vectors of the largest product with the document's, by `transformers`."""
    weight = load_file(colbert / "model.safetensors")["linear.weight"]
    documents = ["a bc.", "x", "cb a, d", "a bc."]

    def unit(states: Any) -> Any:
        vectors = states @ weight.T
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    with LLM(colbert, cache_dir=None) as llm:
        tokenizer = llm.model.tokenizer
        marks = [tokenizer.id_of("[unused0]"), tokenizer.id_of("[unused1]")]
        ids = tokenizer.encode("bc d")
        ids = [ids[0], marks[0], *ids[1:]]
        padded = ids + [tokenizer.id_of("[MASK]")] * (QUERY_LENGTH - len(ids))
        query = unit(states_of(colbert, padded, len(ids)))
        expected: list[float] = []
        for document in documents:
            ids = tokenizer.encode(document)
            ids = [ids[0], marks[1], *ids[1:]]
            skipped = {tokenizer.id_of(sign) for sign in ".,"}
            kept = [place for place, token in enumerate(ids) if token not in skipped]
            expected.append(float((query @ unit(states_of(colbert, ids))[kept].T).max(1).sum()))
        assert llm.score([("bc d", document) for document in documents]) == pytest.approx(expected, abs=1e-3)
        found = llm.rerank("bc d", documents)
        assert [one.index for one in found] == sorted(range(4), key=lambda i: (-found_score(found, i), i))
        assert {one.index: pytest.approx(one.score, abs=1e-3) for one in found} == dict(enumerate(expected))
        assert llm.rerank("bc d", documents, top_n=1) == found[:1]


def found_score(found: Any, index: int) -> float:
    return next(one.score for one in found if one.index == index)


def test_pylate_folders(colbert: Path, tmp_path: Path) -> None:
    folder = head_model(tmp_path, "encoders/bert")
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": hidden, "out_features": 8, "bias": False, "activation_function": identity}
    add_module(folder, ["Transformer", "Dense"], Dense=dense)
    weight = load_file(colbert / "model.safetensors")["linear.weight"]
    save_file({"linear.weight": weight}, folder / "1_Dense/model.safetensors")
    settings = {
        "query_prefix": "[unused0] ",
        "document_prefix": "[unused1] ",
        "query_length": QUERY_LENGTH,
        "skiplist_words": ["."],
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with LLM(folder, cache_dir=None) as late, LLM(colbert, cache_dir=None) as other:
        for role in ("query", "document"):
            found, expected = (llm.token_vectors("a bc.", role=role)[0] for llm in (late, other))
            assert np.abs(found - expected).max() <= 1e-6


def test_vectors_of_tokens_without_a_head(tmp_path: Path) -> None:
    folder = head_model(tmp_path, "encoders/bert")
    with LLM(folder, cache_dir=None, pooling="none") as llm:
        assert np.array_equal(llm.token_vectors("abc")[0], llm.embed_tokens("abc")[0])


@pytest.mark.parametrize("golden", ["bert_masked_lm", "modernbert_masked_lm"])
def test_sparse_vectors(tmp_path: Path, golden: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = head_model(tmp_path, f"heads/{golden}")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    add_module(folder, ["MLMTransformer", "SpladePooling"])
    with LLM(folder, cache_dir=None) as llm:
        ids = llm.model.tokenizer.encode("a bc")
        [found] = llm.sparse("a bc")
        assert llm.sparse([]) == []
        with pytest.raises(InvalidRequest, match="it can make sparse vectors"):
            llm.embed("a")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    expected = torch.log1p(torch.relu(logits)).amax(0).numpy()
    assert found.ids.tolist() == np.flatnonzero(expected > 0).tolist()
    assert np.abs(found.values - expected[found.ids]).max() <= 1e-4


def embedder(folder: Path, prompts: dict[str, object] | None = None, **dense: object) -> Path:
    path = head_model(folder, "encoders/bert")
    hidden = json.loads((path / "config.json").read_text())["hidden_size"]
    config = {"in_features": hidden, "out_features": 6, "bias": True} | dense
    config = {"activation_function": "torch.nn.modules.activation.Tanh"} | config
    pooling: dict[str, object] = {"pooling_mode_max_tokens": True}
    add_module(path, ["Transformer", "Pooling", "Dense", "Normalize"], Pooling=pooling, Dense=config)
    random = np.random.default_rng(1)
    weights = {"linear.weight": random.standard_normal((6, hidden), np.float32) * np.float32(0.1)}
    save_file(weights | {"linear.bias": np.ones(6, np.float32)}, path / "2_Dense/model.safetensors")
    if prompts is not None:
        (path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return path


def test_dense_follows_the_pooling(tmp_path: Path) -> None:
    folder = embedder(tmp_path)
    weights = load_file(folder / "2_Dense/model.safetensors")
    with LLM(folder, cache_dir=None) as llm:
        states = states_of(folder, llm.model.tokenizer.encode("a bc"))
        expected = np.tanh(states.max(0) @ weights["linear.weight"].T + weights["linear.bias"])
        found = llm.embed("a bc")
        assert found.shape == (1, 6)
        assert np.abs(found[0] - expected / np.linalg.norm(expected)).max() <= 1e-4
        shorter = llm.embed("a bc", dimensions=3)[0]
        assert np.abs(shorter - expected[:3] / np.linalg.norm(expected[:3])).max() <= 1e-4


@pytest.mark.parametrize(
    ("golden", "named", "sizes"),
    [("gemma3_embedding", "Gemma3TextModel", (48, 32)), ("t5", "T5EncoderModel", (24,))],
)
def test_dense_modules_of_embedding_gemma_and_sentence_t5(
    tmp_path: Path, golden: str, named: str, sizes: tuple[int, ...]
) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = head_model(tmp_path, f"encoders/{golden}")
    kinds = ["Transformer", "Pooling", *["Dense"] * len(sizes), "Normalize"]
    add_module(folder, kinds, Pooling={"pooling_mode_mean_tokens": True})
    matrices, inputs = list[Any](), 32
    for place, size in enumerate(sizes, 2):
        config = {"in_features": inputs, "out_features": size, "bias": False}
        config |= {"activation_function": "torch.nn.modules.linear.Identity"}
        (folder / f"{place}_Dense/config.json").write_text(json.dumps(config))
        matrices.append(RANDOM.standard_normal((size, inputs), np.float32))
        save_file({"linear.weight": matrices[-1]}, folder / f"{place}_Dense/model.safetensors")
        inputs = size
    prompts = {"prompts": {"query": "task: search result | query: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    model = getattr(transformers, named).from_pretrained(folder).eval()
    with LLM(folder, cache_dir=None) as llm:
        ids = llm.model.tokenizer.encode("task: search result | query: a bc")
        found = llm.embed("a bc", prompt_name="query")[0]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
    for matrix in matrices:
        expected = matrix @ expected
    assert np.abs(found - expected / np.linalg.norm(expected)).max() <= 1e-4


def test_qwen3_embeddings_are_those_of_the_last_token(tmp_path: Path) -> None:
    folder = head_model(tmp_path, "encoders/qwen3_last", architectures=["Qwen3ForCausalLM"])
    add_module(folder, ["Transformer", "Pooling", "Normalize"], Pooling={"pooling_mode_lasttoken": True})
    with LLM(folder, cache_dir=None) as llm:
        ids = llm.model.tokenizer.encode("a bc")
        assert ids[-1] == llm.model.tokenizer.id_of("[SEP]")  # as Qwen's end of text, which its template adds
        expected = states_of(folder, ids)[-1]
        assert np.abs(llm.embed("a bc")[0] - expected / np.linalg.norm(expected)).max() <= 1e-4


def test_prompts_go_in_front_of_texts(tmp_path: Path) -> None:
    prompts: dict[str, object] = {"prompts": {"query": "q ", "document": ""}, "default_prompt_name": None}
    folder = embedder(tmp_path, prompts)
    with LLM(folder, cache_dir=None) as llm:
        assert np.array_equal(llm.embed("ab", prompt_name="query"), llm.embed("q ab"))
        assert np.array_equal(llm.embed("ab", prompt_name="document"), llm.embed("ab"))
        with pytest.raises(InvalidRequest, match=r"prompt_name is 'poem', .* are: document, query"):
            llm.embed("ab", prompt_name="poem")
        with pytest.raises(InvalidRequest, match="not with token ids"):
            llm.embed([[5, 6]], prompt_name="query")
    folder = embedder(tmp_path / "default", prompts | {"default_prompt_name": "query"})
    with LLM(folder, cache_dir=None) as llm:
        assert np.array_equal(llm.embed("ab"), llm.embed("ab", prompt_name="query"))


@pytest.mark.parametrize(
    ("prompts", "dense", "error", "said"),
    [
        ({"prompts": []}, {"in_features": 3}, UnsupportedModel, "in_features is 3"),
        ({"prompts": [1]}, {}, CorruptFile, "prompts"),
        ({"prompts": {"a": 1}}, {}, CorruptFile, "is no text"),
        ({"prompts": {"a": "b"}, "default_prompt_name": "c"}, {}, CorruptFile, "default_prompt_name 'c'"),
        ({}, {"activation_function": "os.system"}, UnsupportedModel, "os.system"),
        ({}, {"out_features": 7}, CorruptFile, "shape"),
    ],
)
def test_broken_files_are_refused(
    tmp_path: Path, prompts: dict[str, object], dense: dict[str, object], error: Any, said: str
) -> None:
    with pytest.raises(error, match=said):
        LLM(embedder(tmp_path, prompts, **dense), cache_dir=None)


def test_dense_modules_are_written_to_folders(tmp_path: Path) -> None:
    source = embedder(tmp_path, {"prompts": {"query": "q "}})
    with open_checkpoint(source) as checkpoint:
        export = Export(checkpoint=checkpoint, path=source, name="e", type="f32", threads=1)
        with pytest.raises(UnsupportedModel, match="has Dense modules, which a GGUF"):
            export.to_gguf(tmp_path / "x.gguf", lambda done, total: None)
        export.to_folder(tmp_path / "out", lambda done, total: None)
    with LLM(source, cache_dir=None) as old, LLM(tmp_path / "out", cache_dir=None) as new:
        found = [llm.embed("ab", prompt_name="query") for llm in (old, new)]
    assert np.array_equal(found[0], found[1])


def test_sparse_vectors_by_an_option(tmp_path: Path) -> None:
    folder = head_model(tmp_path, "heads/bert_masked_lm")
    with LLM(folder, cache_dir=None, pooling="splade") as llm, LLM(folder, cache_dir=None) as embedder:
        assert llm.sparse("a bc")[0].ids.size and embedder.embed("a bc").shape == (1, 32)
    with pytest.raises(CorruptFile, match="no tensor 'cls"):
        LLM(head_model(tmp_path, "encoders/bert"), cache_dir=None, pooling="splade")
