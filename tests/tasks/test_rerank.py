"""Rerankers of every kind, constrained choice, labels without training, classifiers from examples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from golden import FOLDER
from head_models import head_model
from headrace import LLM, AsyncLLM
from headrace.errors import ContextLengthExceeded, CorruptFile, InvalidRequest, UnsupportedModel
from headrace.tasks.few_shot import WEIGHTS_FILE, fit
from tiny import tiny_model

DOCUMENTS = ["a cat", "dogs run", "the sea, the sea", "a cat"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(tiny_model(tmp_path_factory.mktemp("decoder")), cache_dir=None) as llm:
        yield llm


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_model(tmp_path_factory.mktemp("embedder"), "encoders/bert")
    with LLM(folder, cache_dir=None) as llm:
        yield llm


@pytest.fixture(scope="module")
def cross_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return head_model(tmp_path_factory.mktemp("cross"), "heads/qwen3_reward")


def test_a_cross_encoder_scores_each_pair(cross_folder: Path) -> None:
    with LLM(cross_folder, cache_dir=None) as llm:
        found = llm.rerank("cat", DOCUMENTS)
        assert sorted(one.index for one in found) == [0, 1, 2, 3]
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert all(0 < one.score < 1 for one in found)
        scores = llm.score([("cat", document) for document in DOCUMENTS])
        assert {one.index: one.score for one in found} == dict(enumerate(scores))
        raw = np.array(llm.score([("cat", document) for document in DOCUMENTS], raw=True))
        assert scores == pytest.approx(1 / (1 + np.exp(-raw)))
        assert llm.rerank("cat", DOCUMENTS, top_n=2) == found[:2]
        assert [one.index for one in found if one.index in (0, 3)] == [0, 3]  # equal ones in their order


def test_an_embedder_reranks_by_cosine(embedder: LLM) -> None:
    vectors = embedder.embed(["cat", *DOCUMENTS])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = (vectors[1:] @ vectors[0]).tolist()
    assert embedder.score([("cat", one) for one in DOCUMENTS]) == pytest.approx(expected, abs=1e-5)


def test_what_is_too_long_is_cut_only_when_asked(embedder: LLM) -> None:
    long = "a" * 10_000
    with pytest.raises(ContextLengthExceeded):
        embedder.rerank("cat", [long])
    assert len(embedder.rerank("cat", [long], max_tokens_per_doc=4)) == 1
    assert embedder.score([("cat", "aaaa")]) == pytest.approx(
        [embedder.rerank("cat", [long], max_tokens_per_doc=4)[0].score], abs=1e-6
    )


@pytest.mark.parametrize(
    ("documents", "more", "param"),
    [
        ([], {}, "documents"),
        (["a"] * 2049, {}, "documents"),
        (["a"], {"top_n": 0}, "top_n"),
        ("abc", {}, "documents"),
        (["a", 1], {}, "documents"),
        (["a", None], {}, "documents"),
        (["a"], {"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
def test_bad_arguments_are_named(
    embedder: LLM, documents: list[str], more: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        embedder.rerank("cat", documents, **more)
    assert caught.value.param == param


def test_what_is_no_text_is_named(embedder: LLM) -> None:
    wrong: Any = 1
    with pytest.raises(InvalidRequest, match="must be a text"):
        embedder.rerank(wrong, ["a"])
    with pytest.raises(InvalidRequest, match=r"pairs\[1\] is 1"):
        embedder.score([("a", wrong)])
    for pair in ("ab", ("a",), ("a", "b", "c"), None):
        with pytest.raises(InvalidRequest, match=r"pairs\[0\] is .*, it must be two texts"):
            embedder.score([cast("Any", pair)])
    assert np.array_equal(embedder.embed("a", truncate=wrong), embedder.embed("a"))


def test_a_generator_reranks_only_when_told_to(decoder: LLM) -> None:
    with pytest.raises(InvalidRequest, match="generates text: name a reranker, or send an instruction"):
        decoder.rerank("cat", DOCUMENTS)
    with pytest.raises(UnsupportedModel, match="writes 'yes' with 3 tokens"):
        decoder.rerank("cat", DOCUMENTS, instruction="find cats")


def reranking_decoder(folder: Path, name: str) -> Path:
    """A tiny Qwen 3 of that name, whose tokenizer has one token for each of yes, no, 1 and 0."""
    target = tiny_model(folder, "qwen3").rename(folder / name)
    state = json.loads((target / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    for piece, number in (("ye", 125), ("yes", 126), ("no", 127)):
        del vocabulary[next(known for known, place in vocabulary.items() if place == number)]
        vocabulary[piece] = number
    state["model"]["merges"] = [["y", "e"], ["ye", "s"], ["n", "o"]]
    (target / "tokenizer.json").write_text(json.dumps(state))
    return target


QWEN3_PROMPT = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: cat\n<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
MXBAI_PROMPT = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nquery: cat\ndocument: {}\nYou are a search relevance expert who evaluates how well"
    " documents match search queries. For each query-document pair, carefully analyze the semantic"
    " relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for"
    " relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("name", "prompt", "words"),
    [
        ("tiny-Reranker", QWEN3_PROMPT, ("yes", "no")),
        ("mxbai-rerank-tiny-v2", MXBAI_PROMPT, ("1", "0")),
    ],
)
def test_decoders_judge_by_the_prompt_of_their_card(
    tmp_path: Path, name: str, prompt: str, words: tuple[str, str]
) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = reranking_decoder(tmp_path, name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with LLM(folder, cache_dir=None) as llm:
        raw = llm.score([("cat", document) for document in DOCUMENTS], raw=True)
        likely = llm.score([("cat", document) for document in DOCUMENTS])
        encode = llm.model.tokenizer.encode
        for document, score in zip(DOCUMENTS, raw, strict=True):
            ids = encode(prompt.format(document), add_special=False)
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1]
            yes, no = (encode(word, add_special=False)[0] for word in words)
            assert score == pytest.approx(float(logits[yes] - logits[no]), abs=1e-3)
        assert likely == pytest.approx(1 / (1 + np.exp(-np.array(raw))))


def test_a_decoder_s_document_is_cut_only_when_asked(tmp_path: Path) -> None:
    with LLM(reranking_decoder(tmp_path, "tiny-Reranker"), cache_dir=None) as llm:
        encode, context = llm.model.tokenizer.encode, llm.model.context_length
        long = "a" * context
        with pytest.raises(ContextLengthExceeded):
            llm.score([("cat", long)])
        fitting = context - 1 - len(encode(QWEN3_PROMPT.format(""), add_special=False))
        assert llm.score([("cat", long)], truncate=True) == llm.score([("cat", "a" * fitting)])
        with pytest.raises(ContextLengthExceeded, match="shorten the query"):
            llm.score([(long, "a cat")], truncate=True)


# jina-reranker-v2 has no model_type.
FLASH = {"model_type": None, "auto_map": {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig"}}


@pytest.mark.parametrize(
    ("golden", "architecture", "more"),
    [
        ("heads/jina_absolute_classify", "XLMRobertaForSequenceClassification", FLASH),
        ("heads/jina_v2_classify", "JinaBertForSequenceClassification", {}),  # jina-reranker-v1
        ("heads/gte_ntk_classify", "NewForSequenceClassification", {}),  # gte-multilingual-reranker
    ],
)
def test_rerankers_are_told_by_their_architecture(
    tmp_path: Path, golden: str, architecture: str, more: dict[str, object]
) -> None:
    weights = load_file(FOLDER / golden / "model.safetensors")
    more = {"id2label": {"0": "LABEL_0"}, **more}
    folder = head_model(tmp_path, golden, architectures=[architecture], **more)
    for name in ("classifier.weight", "classifier.bias"):
        if name in weights:
            weights[name] = np.ascontiguousarray(weights[name][:1])
    save_file(weights, folder / "model.safetensors")
    with LLM(folder, cache_dir=None) as llm:
        assert llm.model.tasks == ("classify", "rerank")
        assert len(llm.rerank("cat", DOCUMENTS)) == len(DOCUMENTS)


def test_choices_are_scored_exactly(decoder: LLM) -> None:
    labels = ["red", "rose", "blue"]
    prompt = "The sky is "
    found = decoder.choose(prompt, labels, raw=True)
    for label, score in zip(labels, found.scores, strict=True):
        scored = decoder.generate(prompt + label, max_tokens=1, prompt_logprobs=0)
        logprobs = scored.prompt_logprobs
        assert logprobs is not None
        expected = sum(one.logprob for one in logprobs[-len(label) :])
        assert score == pytest.approx(expected, abs=2e-4)
    shares = decoder.choose(prompt, labels)
    assert sum(shares.scores) == pytest.approx(1)
    assert shares.label == found.label == labels[int(np.argmax(found.scores))]


def test_choices_answer_messages(decoder: LLM) -> None:
    found = decoder.choose([{"role": "user", "content": "Is it?"}], ["yes", "no"])
    assert found.labels == ("yes", "no") and sum(found.scores) == pytest.approx(1)
    assert decoder.choose([{"role": "user", "content": "Is it?"}], ["yes", "no"]) == found


@pytest.mark.parametrize("labels", [[], [""], ["a", "a"], ["a"] * 1001])
def test_labels_that_mean_nothing_are_refused(decoder: LLM, labels: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoder.choose("x", labels)
    assert caught.value.param == "labels"


def test_a_decoder_says_that_it_reads_no_template(decoder: LLM, caplog: pytest.LogCaptureFixture) -> None:
    [found] = decoder.zero_shot("a cat", ["cat", "sea"], hypothesis_template="It is {} indeed.")
    assert [found] == decoder.zero_shot("a cat", ["cat", "sea"])
    assert caplog.text.count("reads the labels as they are") == 1


@pytest.mark.parametrize(
    ("pair", "param", "what"),
    [
        (("cat", "a" * 600), "input", "document 1 has 601 tokens"),
        (("a" * 600, "cat"), "query", "query 1 has 601 tokens"),
        (("a" * 600, "a" * 600), "query", "query 1 has"),
        (("cat", "a" * 200_000), "input", "document 1 has 200,000 characters"),
    ],
)
def test_the_text_of_a_pair_that_is_too_long_is_named(
    embedder: LLM, pair: tuple[str, str], param: str, what: str
) -> None:
    with pytest.raises(ContextLengthExceeded, match=what) as caught:
        embedder.score([("dog", "cat"), pair])
    assert caught.value.param == param
    with pytest.raises(ContextLengthExceeded, match="the query has 601 tokens") as caught:
        embedder.rerank("a" * 600, ["cat"])
    assert caught.value.param == "query"


def test_warnings_say_which_document_was_cut(embedder: LLM, caplog: pytest.LogCaptureFixture) -> None:
    embedder.rerank("cat", ["cat", "sea", "a" * 600, "a" * 600], truncate=True)
    assert "document 2 has 601 tokens and was cut" in caplog.text


@pytest.mark.parametrize("letters", [2_000, 600_000])
def test_a_pair_that_is_too_long_for_a_decoder_is_named(tmp_path: Path, letters: int) -> None:
    with (
        LLM(reranking_decoder(tmp_path, "tiny-Reranker"), cache_dir=None) as llm,
        pytest.raises(ContextLengthExceeded, match="pair") as caught,
    ):
        llm.score([("cat", "a"), ("cat", "a" * letters)])
    assert caught.value.param == "input"


def test_sparse_vectors_rank_nothing(tmp_path: Path) -> None:
    folder = head_model(tmp_path, "heads/bert_masked_lm")
    with (
        LLM(folder, cache_dir=None, pooling="splade") as llm,
        pytest.raises(InvalidRequest, match="cannot rank documents for a query, it can make sparse vectors"),
    ):
        llm.rerank("cat", ["a"])


@pytest.mark.parametrize("letters", [600, 200_000])
def test_a_text_that_is_too_long_for_a_decoder_is_named(decoder: LLM, letters: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        decoder.zero_shot("a" * letters, ["cat", "sea"])
    assert caught.value.param == "input"


def test_an_encoder_chooses_nothing(embedder: LLM) -> None:
    with pytest.raises(InvalidRequest, match="cannot generate text, it can embed texts"):
        embedder.choose("x", ["a", "b"])


def test_asyncio_gives_the_same(cross_folder: Path) -> None:
    async def ask() -> list[Any]:
        async with AsyncLLM(cross_folder, cache_dir=None) as llm:
            return [await llm.rerank("cat", DOCUMENTS), await llm.score([("cat", "a cat")])]

    found, scores = asyncio.run(ask())
    with LLM(cross_folder, cache_dir=None) as llm:
        assert llm.rerank("cat", DOCUMENTS) == found
        assert llm.score([("cat", "a cat")]) == scores


@pytest.mark.parametrize("multi_label", [False, True])
def test_entailment_as_the_pipeline(tmp_path: Path, multi_label: bool) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    names = {"0": "contradiction", "1": "neutral", "2": "entailment"}
    folder = head_model(
        tmp_path,
        "heads/bert_classify",
        id2label=names,
        label2id={name: int(key) for key, name in names.items()},
    )
    pipeline = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    labels = ["politics", "sea", "cats"]
    expected = pipeline("the cat", labels, multi_label=multi_label, hypothesis_template="It is {}.")
    by_label = dict(zip(expected["labels"], expected["scores"], strict=True))
    with LLM(folder, cache_dir=None) as llm:
        [found] = llm.zero_shot("the cat", labels, multi_label=multi_label, hypothesis_template="It is {}.")
    assert found.scores == pytest.approx([by_label[label] for label in labels], abs=1e-4)


def test_labels_by_vectors_and_their_template(embedder: LLM) -> None:
    [found] = embedder.zero_shot("a cat", ["cat", "sea"], hypothesis_template="a {}")
    assert found.label == "cat" and sum(found.scores) == pytest.approx(1)
    with pytest.raises(InvalidRequest) as caught:
        embedder.zero_shot("a cat", ["cat", "sea"], hypothesis_template="none")
    assert caught.value.param == "hypothesis_template"


def test_a_classifier_from_examples_is_the_same_each_time(embedder: LLM, tmp_path: Path) -> None:
    examples = {"cats": ["a cat", "two cats", "my cat"], "sea": ["the sea", "a wave", "deep water"]}
    made = embedder.fit_classifier(examples, strength=1e-4)
    assert [one.label for one in made.classify(["a cat", "the sea"])] == ["cats", "sea"]
    again = embedder.fit_classifier(
        [(text, label) for label in examples for text in examples[label]], strength=1e-4
    )
    assert np.array_equal(made.regression.weights, again.regression.weights)
    made.save(tmp_path)
    assert embedder.load_classifier(tmp_path).classify("a cat") == made.classify("a cat")
    data = (tmp_path / WEIGHTS_FILE).read_bytes()
    (tmp_path / WEIGHTS_FILE).write_bytes(data[:-9])
    with pytest.raises(CorruptFile):
        embedder.load_classifier(tmp_path)
    with pytest.raises(InvalidRequest):
        embedder.fit_classifier({"one": ["a"]})


def test_the_regression_is_at_its_minimum() -> None:
    numbers = np.random.default_rng(1)
    vectors = numbers.normal(size=(60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = ["a" if row[0] > 0 else "b" for row in vectors]
    found = fit(vectors, labels)
    right = [one.label == label for one, label in zip(found.classify(vectors), labels, strict=True)]
    assert np.mean(right) > 0.9
