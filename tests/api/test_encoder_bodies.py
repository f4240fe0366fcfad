"""Bodies of Cohere, Jina, Voyage, vLLM and TEI over HTTP: every field takes effect, is refused, or warns."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from fake import FakeModel
from in_process import Running, running_server, server_of

from encoder_models import QUERY_PROMPT, load_encoders
from headrace.engine.unit_rows import unit_rows
from headrace.tasks.vector_types import as_type

TEXTS = ["a cat", "the sea"]
LONG = "abcdefgh " * 20  # the tiny models read 64 tokens, one for each letter
NAMES = ("decoder", "embedder", "classifier", "reranker", "nli", "tokens", "states", "sparse")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The default model is a decoder."""
    with ExitStack() as held:
        models = load_encoders(tmp_path_factory.mktemp("models"), held, *NAMES)
        yield held.enter_context(server_of(*models, offline=True))


def post(server: Running, path: str, body: Any, status: int = 200) -> Any:
    reply = server.http().post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def warned(server: Running, path: str, body: Any) -> tuple[Any, list[dict[str, str]]]:
    """The reply, and what its header warns of."""
    reply = server.http().post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json(), json.loads(reply.headers.get("x-headrace-warnings", "[]"))


def vectors(server: Running, *texts: str, **more: Any) -> np.ndarray:
    data = post(server, "/v1/embeddings", {"model": "embedder", "input": list(texts), **more})["data"]
    return np.array([one["embedding"] for one in data], np.float32)


def refused_field(server: Running, path: str, body: Any) -> str:
    """The field that a 400 names, in whatever shape the path's errors have."""
    error = post(server, path, body, 400)
    return error["param"] if isinstance(error["error"], str) else error["error"]["param"]


def test_without_a_name_an_embedder_is_asked_and_not_the_default_model(server: Running) -> None:
    expected = vectors(server, *TEXTS)
    assert np.allclose(post(server, "/embed", {"inputs": TEXTS}), unit_rows(expected), atol=1e-6)
    data = post(server, "/v1/embeddings", {"input": TEXTS})["data"]
    assert np.array_equal(np.array([one["embedding"] for one in data], np.float32), expected)
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    cosine = float(np.prod(unit_rows(expected), 0).sum())
    assert post(server, "/similarity", body) == pytest.approx([cosine], abs=1e-5)
    assert "generates text" in post(server, "/embed", {"inputs": "a", "model": "decoder"}, 400)["error"]


@pytest.mark.parametrize("field", ["encoding_format", "output_dtype", "embedding_type", "encoding_type"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "binary", "ubinary"])
def test_types_of_vectors(server: Running, field: str, kind: Any) -> None:
    expected = as_type(unit_rows(vectors(server, *TEXTS)), kind)
    found = vectors(server, *TEXTS, **{field: [kind] if field == "embedding_type" else kind})
    assert np.array_equal(found.astype(int), expected.astype(int))


def test_base64_of_any_type(server: Running) -> None:
    for kind, dtype in (("float", "<f4"), ("int8", "i1"), ("ubinary", "u1")):
        body = {"model": "embedder", "input": "a cat", "encoding_format": "base64", "output_dtype": kind}
        text = post(server, "/v1/embeddings", body)["data"][0]["embedding"]
        plain = vectors(server, "a cat", output_dtype=kind)[0]
        assert np.array_equal(np.frombuffer(base64.b64decode(text), dtype).astype(np.float32), plain)


def test_jinas_fields(server: Running) -> None:
    expected = vectors(server, QUERY_PROMPT + "a cat")
    assert np.array_equal(vectors(server, "a cat", task="retrieval.query"), expected)
    [one] = post(server, "/v1/embeddings", {"model": "embedder", "input": [{"text": "a cat"}]})["data"]
    assert np.array_equal(np.array([one["embedding"]], np.float32), vectors(server, "a cat"))
    for field, value in (("late_chunking", True), ("return_multivector", True), ("task", "poems")):
        body = {"input": "a", "model": "embedder", field: value}
        assert refused_field(server, "/v1/embeddings", body) == field
    assert (
        refused_field(server, "/v1/embeddings", {"input": [{"image": "x"}], "model": "embedder"}) == "input"
    )
    post(server, "/v1/embeddings", {"input": "a", "model": "embedder", "late_chunking": False})
    assert np.linalg.norm(vectors(server, "a cat", normalized=True)) == pytest.approx(1, abs=1e-5)


def test_voyages_and_vllms_fields(server: Running) -> None:
    assert np.array_equal(
        vectors(server, "a cat", input_type="document", output_dimension=8),
        vectors(server, "p: a cat", dimensions=8),
    )
    assert np.array_equal(vectors(server, "abcdef", truncate_prompt_tokens=4), vectors(server, "abc"))
    assert np.array_equal(
        vectors(server, LONG, truncation=True), vectors(server, LONG, truncate_prompt_tokens=-1)
    )
    for twins in (
        {"dimensions": 4, "output_dimension": 4},
        {"encoding_format": "int8", "output_dtype": "binary"},
        {"truncate": True, "truncation": False},
        {"truncate_prompt_tokens": 0},
        {"embedding_type": ["float", "int8"]},
    ):
        body = {"input": "a", "model": "embedder", **twins}
        assert refused_field(server, "/v1/embeddings", body) == list(twins)[-1]


def test_a_purpose_without_a_prompt_is_a_warning(server: Running) -> None:
    body = {"input": "a", "model": "embedder", "task": "classification"}
    reply, said = warned(server, "/v1/embeddings", body)
    assert [one["param"] for one in said] == ["task"] == [one["param"] for one in reply["warnings"]]
    assert "passage, query" in said[0]["message"]
    body = {"input": [[3, 4]], "model": "embedder", "task": "retrieval.query"}
    assert warned(server, "/v1/embeddings", body)[1][0]["param"] == "task"


def test_cohere_embeds_in_several_types(server: Running) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    body = {"model": "embedder", "texts": TEXTS, "input_type": "search_query", "embedding_types": types}
    for path in ("/v2/embed", "/v1/embed"):
        reply = post(server, path, body)
        assert reply["response_type"] == "embeddings_by_type" and reply["texts"] == TEXTS
        assert list(reply["embeddings"]) == types
        expected = vectors(server, *(QUERY_PROMPT + text for text in TEXTS))
        assert np.allclose(reply["embeddings"]["float"], expected, atol=1e-6)
        assert np.array_equal(reply["embeddings"]["binary"], as_type(expected, "binary"))
        assert np.array_equal(reply["embeddings"]["uint8"], as_type(unit_rows(expected), "uint8"))
        text = base64.b64decode(reply["embeddings"]["base64"][1])
        assert np.array_equal(np.frombuffer(text, "<f4"), expected[1])
        assert reply["meta"]["billed_units"]["input_tokens"] > 10
        assert reply["meta"]["api_version"]["version"] == path[2]
    plain = post(server, "/v1/embed", {"model": "embedder", "texts": TEXTS})
    assert plain["response_type"] == "embeddings_floats"
    assert np.allclose(plain["embeddings"], vectors(server, *TEXTS), atol=1e-6)
    mixed = {
        "model": "embedder",
        "inputs": [{"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]}],
    }
    assert np.allclose(
        post(server, "/v2/embed", mixed)["embeddings"]["float"], vectors(server, "a cat"), atol=1e-6
    )


def test_cohere_cuts_at_either_end(server: Running) -> None:
    def embedded(text: str, **more: Any) -> Any:
        return post(server, "/v2/embed", {"model": "embedder", "texts": [text], **more})

    end, start = (embedded("abcdef", max_tokens=4, truncate=side) for side in ("END", "START"))
    assert np.allclose(end["embeddings"]["float"], vectors(server, "abc"), atol=1e-6)
    assert np.allclose(start["embeddings"]["float"], vectors(server, "def"), atol=1e-6)
    assert "was cut to max_tokens, 4" in end["meta"]["warnings"][0]
    assert "warnings" not in embedded("abcdef")["meta"]
    for more in ({"truncate": "NONE", "max_tokens": 4}, {"max_tokens": 4}):
        error = post(server, "/v2/embed", {"model": "embedder", "texts": ["abcdef"], **more}, 400)
        assert "max_tokens is 4" in error["error"]["message"]
    for more, field in (
        ({"images": ["x"]}, "images"),
        ({"input_type": "image"}, "input_type"),
        ({"embedding_types": ["int4"]}, "embedding_types"),
        ({"embedding_types": []}, "embedding_types"),
        ({"truncate": "MIDDLE"}, "truncate"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"] * 2049}, "texts"),
        ({"inputs": []}, "texts"),
    ):
        found = refused_field(server, "/v2/embed", {"model": "embedder", "texts": ["a"], **more})
        assert found.startswith(field), more


def test_cohere_classifies(server: Running) -> None:
    reply = post(server, "/v1/classify", {"model": "classifier", "inputs": TEXTS})
    own = post(server, "/v1/classify", {"model": "classifier", "input": TEXTS})["data"]
    for one, ours in zip(reply["classifications"], own, strict=True):
        assert (one["prediction"], one["confidence"]) == (ours["label"], max(ours["probs"]))
        assert {name: it["confidence"] for name, it in one["labels"].items()} == dict(
            zip(ours["labels"], ours["probs"], strict=True)
        )
    examples = [
        {"text": text, "label": label}
        for label, texts in (("x", "aaa bab aba"), ("y", "zzz yzy zyz"))
        for text in texts.split()
    ]
    reply = post(server, "/v1/classify", {"inputs": ["aab", "zzy"], "examples": examples})
    assert [one["prediction"] for one in reply["classifications"]] == ["x", "y"]
    for more, field in (
        ({"examples": [examples[0]]}, "examples"),
        ({"examples": [one | {"label": one["label"] * 10**5} for one in examples]}, "examples"),
        ({"preset": "x"}, "preset"),
        ({"truncate": "START"}, "truncate"),
        ({"labels": ["a", "b"]}, "labels"),
        ({"input": "a"}, "input"),
    ):
        assert refused_field(server, "/v1/classify", {"inputs": ["a"] * 50, **more}) == field
    assert refused_field(server, "/v1/classify", {"input": "a", "examples": examples}) == "examples"
    assert refused_field(server, "/v1/classify", {}) == "input"


def test_pooling_gives_what_the_model_makes(server: Running) -> None:
    def pooled(model: str, **more: Any) -> list[Any]:
        reply = post(server, "/pooling", {"model": model, "input": TEXTS, **more})
        assert reply["object"] == "list" and [one["index"] for one in reply["data"]] == [0, 1]
        assert (
            all(one["object"] == "pooling" for one in reply["data"]) and reply["usage"]["total_tokens"] > 10
        )
        return [one["data"] for one in reply["data"]]

    assert np.allclose(pooled("embedder"), vectors(server, *TEXTS), atol=1e-6)
    states = pooled("states", task="token_embed")
    assert states == pooled("states") == post(server, "/embed_all", {"model": "states", "inputs": TEXTS})
    probabilities = pooled("classifier")
    own = post(server, "/v1/classify", {"model": "classifier", "input": TEXTS})["data"]
    assert np.allclose(probabilities, [one["probs"] for one in own], atol=1e-6)
    logits = pooled("classifier", task="classify", use_activation=False)
    assert logits == pooled("classifier", softmax=False) != probabilities
    assert np.shape(pooled("tokens")[0])[1] == 3
    text = pooled("states", encoding_format="base64")[1]
    assert np.allclose(np.frombuffer(base64.b64decode(text), "<f4"), np.ravel(states[1]), atol=1e-6)
    for more, field in (
        ({"task": "classify"}, "model"),
        ({"task": "plugin"}, "task"),
        ({"activation": True, "softmax": True}, "softmax"),
        ({"add_special_tokens": False}, "add_special_tokens"),
        ({"model": "classifier", "dimensions": 2}, "dimensions"),
        ({"model": "tokens", "dimensions": 2, "task": "token_classify"}, "dimensions"),
    ):
        assert refused_field(server, "/pooling", {"model": "embedder", "input": "a", **more}) == field
    assert (
        "can generate text"
        in post(server, "/pooling", {"model": "decoder", "input": "a"}, 400)["error"]["message"]
    )


def test_tei_says_in_a_header_what_it_has_cut(server: Running) -> None:
    for path, model in (
        ("/embed", "embedder"),
        ("/embed_all", "states"),
        ("/embed_sparse", "sparse"),
        ("/predict", "classifier"),
    ):
        error = post(server, path, {"model": model, "inputs": LONG}, 400)
        assert (error["error_type"], error["param"]) == ("Validation", "inputs")
        _, said = warned(server, path, {"model": model, "inputs": LONG, "truncate": True})
        assert [one["param"] for one in said] == ["truncate"], path
        assert warned(server, path, {"model": model, "inputs": "a"})[1] == []
    inputs = {"source_sentence": LONG, "sentences": ["a"]}
    assert "tokens" in post(server, "/similarity", {"inputs": inputs}, 400)["error"]
    _, said = warned(server, "/similarity", {"inputs": inputs, "parameters": {"truncate": True}})
    assert [one["param"] for one in said] == ["truncate"]
    many = {"model": "embedder", "inputs": [LONG] * 200, "truncate": True}
    assert 1 <= len(warned(server, "/embed", many)[1]) < 200


def test_tei_cuts_at_the_left_of_single_texts(server: Running) -> None:
    right, left = (
        post(
            server,
            "/embed",
            {"model": "embedder", "inputs": LONG + "xyz", "truncate": True, "truncation_direction": side},
        )
        for side in ("Right", "Left")
    )
    assert np.allclose(left, unit_rows(vectors(server, (LONG + "xyz")[-63:])), atol=1e-6) and left != right
    assert np.allclose(right, unit_rows(vectors(server, LONG[:63])), atol=1e-6)
    for path, body in (
        ("/predict", {"model": "classifier", "inputs": "a"}),
        ("/rerank", {"model": "reranker", "query": "a", "texts": ["b"]}),
        ("/embed_sparse", {"model": "sparse", "inputs": "a"}),
    ):
        assert refused_field(server, path, body | {"truncation_direction": "Left"}) == "truncation_direction"
        post(server, path, body | {"truncation_direction": "Right"})


def test_tei_s_other_fields(server: Running) -> None:
    named = post(
        server, "/embed", {"model": "embedder", "inputs": "a cat", "prompt_name": "query", "dimensions": 8}
    )
    assert np.allclose(named, unit_rows(vectors(server, QUERY_PROMPT + "a cat", dimensions=8)), atol=1e-6)
    assert refused_field(server, "/embed", {"inputs": "a", "prompt_name": "poem"}) == "prompt_name"
    assert refused_field(server, "/embed", {"inputs": []}) == "inputs"
    _, said = warned(server, "/embed", {"model": "embedder", "inputs": "a", "normalize": False})
    assert [one["param"] for one in said] == ["normalize"]
    ids = post(server, "/tokenize", {"model": "embedder", "inputs": "a cat"})[0]
    assert [one["text"] for one in ids[1:]] == ["a", " ", "c", "a", "t"] or ids[0]["special"]
    by_ids = post(server, "/embed", {"model": "embedder", "inputs": [[one["id"] for one in ids]]})
    assert np.allclose(by_ids, post(server, "/embed", {"model": "embedder", "inputs": "a cat"}), atol=1e-6)


def test_tei_s_tokens_and_texts(server: Running) -> None:
    cat, sea = post(server, "/tokenize", {"model": "classifier", "inputs": ["a cat", "é"]})
    assert [(one["text"], one["start"], one["stop"], one["special"]) for one in cat] == [
        ("[CLS]", None, None, True),
        ("a", 0, 1, False),
        ("c", 2, 3, False),
        ("a", 3, 4, False),
        ("t", 4, 5, False),
        ("[SEP]", None, None, True),
    ]
    assert sea[1]["start"] == 0 and sea[-2]["stop"] == 1
    plain = post(server, "/tokenize", {"model": "classifier", "inputs": "a cat", "add_special_tokens": False})
    assert plain == [cat[1:-1]]
    ids = [one["id"] for one in cat]
    [whole] = post(server, "/decode", {"model": "classifier", "ids": ids, "skip_special_tokens": False})
    assert whole.startswith("[CLS]") and whole.endswith("[SEP]")
    assert len(post(server, "/decode", {"model": "classifier", "ids": [ids, ids[1:2]]})) == 2
    for path, body, field in (
        ("/decode", {"ids": [1 << 20]}, "ids"),
        ("/decode", {"ids": ["a"]}, "ids"),
        ("/decode", {"ids": []}, "ids"),
        ("/tokenize", {"inputs": ["a"], "prompt": "b"}, "prompt"),
        ("/tokenize", {"inputs": []}, "inputs"),
        ("/tokenize", {"prompt": "a", "prompt_name": "query"}, "prompt_name"),
    ):
        assert refused_field(server, path, {"model": "embedder", **body}) == field


def test_info_names_the_first_encoder(server: Running) -> None:
    info = server.http().get("/info").json()
    assert info["model_id"] == "embedder" and info["model_type"] == {"embedding": {}}
    assert info["max_input_length"] == 64 and info["max_client_batch_size"] == 2048
    assert info["prompts"]["query"] == QUERY_PROMPT and info["auto_truncate"] is False


def test_pipelines(server: Running) -> None:
    url = "/pipeline/text-classification?model=classifier"
    [labels] = post(server, url, {"inputs": "a cat"})
    assert labels == post(server, "/predict", {"model": "classifier", "inputs": "a cat"})
    [best] = post(server, url, {"inputs": "a cat", "parameters": {"top_k": 1, "function_to_apply": "none"}})
    raw = post(server, "/predict", {"model": "classifier", "inputs": "a cat", "raw_scores": True})
    assert best == raw[:1]
    assert len(post(server, url, {"inputs": [["a", "b"], ["c"]]})) == 2
    url, how = "/pipeline/zero-shot-classification?model=nli", {"candidate_labels": ["cat", "sea"]}
    found = post(server, url, {"inputs": "a cat", "parameters": how})
    assert sum(one["score"] for one in found) == pytest.approx(1)
    several = post(server, url, {"inputs": TEXTS, "parameters": how | {"multi_label": True}})
    assert len(several) == 2 and len(several[0]) == 2
    url = "/pipeline/token-classification?model=tokens"
    found = post(server, url, {"inputs": "a cat", "parameters": {"aggregation_strategy": "none"}})
    assert all(one["entity"] in ("B-PER", "I-PER") and "entity_group" not in one for one in found)
    for one in post(server, url, {"inputs": "a cat"}):
        assert one["word"] == "a cat"[one["start"] : one["end"]] and one["entity_group"] == "PER"
    left_out = {"parameters": {"ignore_labels": ["O", "PER"]}}
    assert post(server, url, {"inputs": "a cat", **left_out}) == []
    for path, body, field in (
        (url, {"inputs": "a", "parameters": {"ignore_labels": []}}, "ignore_labels"),
        (url, {"inputs": "a", "parameters": {"ignore_labels": ["O"] * 1001}}, "parameters"),
        (url, {"inputs": "a", "parameters": {"window": 3}}, "parameters"),
        ("/pipeline/text-classification", {"inputs": "a", "parameters": {"top_k": 0}}, "parameters"),
        ("/pipeline/feature-extraction?model=embedder", {"inputs": "a", "model": "states"}, "model"),
        ("/", {"inputs": "a", "parameters": {"x": 1}}, "parameters"),
    ):
        assert refused_field(server, path, body).startswith(field), path


def test_the_root_does_what_the_body_and_the_model_say(server: Running) -> None:
    assert post(server, "/", {"inputs": "a cat"}) == post(server, "/embed", {"inputs": "a cat"})
    inputs = {"source_sentence": "a cat", "sentences": TEXTS}
    assert post(server, "/", {"inputs": inputs}) == post(server, "/similarity", {"inputs": inputs})
    body = {"inputs": "a cat", "parameters": {"candidate_labels": ["x", "y"]}}
    assert len(post(server, "/?model=nli", body)) == 2
    assert post(server, "/?model=classifier", {"inputs": "a"}) == post(
        server, "/pipeline/text-classification?model=classifier", {"inputs": "a"}
    )
    assert post(server, "/?model=tokens", {"inputs": "a"}) == post(
        server, "/pipeline/token-classification?model=tokens", {"inputs": "a"}
    )


def test_rerank_counts_units_and_speaks_voyage(server: Running) -> None:
    def ranked(count: int, **more: Any) -> Any:
        body = {"model": "reranker", "query": "cat", "documents": ["a cat"] * count, **more}
        return post(server, "/v2/rerank", body)

    assert [ranked(count)["meta"]["billed_units"]["search_units"] for count in (1, 100, 101)] == [1, 1, 2]
    voyage = ranked(3, top_k=2, truncation=True)
    assert voyage["data"] == voyage["results"] and len(voyage["data"]) == 2 and "data" not in ranked(1)
    body = {"model": "reranker", "query": "a", "documents": ["b"], "top_n": 1, "top_k": 1}
    assert refused_field(server, "/v1/rerank", body) == "top_k"
    cut = ranked(1, max_tokens_per_doc=1)
    assert "were cut" in cut["meta"]["warnings"][0]
    error = post(server, "/rerank", {"model": "reranker", "query": "a", "texts": []}, 400)
    assert error["error_type"] == "Validation" and error["param"] == "texts"


def test_token_classifiers_keep_their_deadline(server: Running) -> None:
    body = {"model": "tokens", "input": ["a cat"] * 50, "deadline_s": 1e-6}
    assert server.http().post("/v1/entities", json=body).status_code == 408


def test_the_language_of_analyze_is_said_to_have_no_effect(server: Running) -> None:
    text = {"text": "zip 10023, a@x.org"}
    found, said = warned(server, "/analyze", text | {"language": "de"})
    assert [one["param"] for one in said] == ["language"] and found
    pattern = {"supported_entity": "ZIP", "patterns": [{"regex": r"\d{5}", "score": 1.0}]}
    own = [pattern | {"supported_language": "en"}, pattern | {"supported_entity": "CODE"}]
    for language, expected in (("en", {"ZIP", "CODE"}), ("de", {"CODE"})):
        found, said = warned(server, "/analyze", text | {"language": language, "ad_hoc_recognizers": own})
        assert {one["entity_type"] for one in found} & {"ZIP", "CODE"} == expected and said == []
    assert "language" in server.http().get("/supportedentities?language=de").headers["x-headrace-warnings"]


def test_info_of_a_server_that_generates() -> None:
    with running_server(FakeModel(), offline=True) as running:
        info = running.http().get("/info").json()
        [empty, one] = running.http().post("/tokenize", json={"inputs": ["", "a"]}).json()
    assert info["model_id"] == "fake/model" and info["model_type"] == {"generate": {}}
    assert [token["special"] for token in one] == [True, False] and len(empty) == 1


def test_vectors_of_tokens_are_bounded_in_number(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was computed so far, not after all of it."""
    for module in ("headrace.api.tei.embeddings", "headrace.api.tasks.pooling"):
        monkeypatch.setattr(f"{module}.MAX_NUMBERS", 5000)
    monkeypatch.setattr("headrace.api.tei.embeddings.MAX_ENTRIES", 1)
    many = {"model": "states", "inputs": ["a cat runs"] * 200}
    said = post(server, "/embed_all", many, 400)["error"]
    assert re.search(r"of (32|64) of the 200 inputs have more than 5,000 numbers", said), said
    said = post(server, "/pooling", {"model": "states", "input": many["inputs"]}, 400)["error"]["message"]
    assert re.search(r"of (32|64) of the 200 inputs have more than 5,000 numbers", said), said
    said = post(server, "/embed_sparse", {"model": "sparse", "inputs": ["a cat"] * 8}, 400)["error"]
    assert "entries, at most 1 are sent" in said


def test_warnings_number_inputs_through(server: Running) -> None:
    texts = ["a"] * 40 + [LONG]
    _, said = warned(server, "/embed_all", {"model": "states", "inputs": texts, "truncate": True})
    assert "text 40 has" in said[0]["message"]


def test_vllms_truncation_is_on_every_path_that_has_it(server: Running) -> None:
    """Cut to so many tokens with a warning that says how many were left out, equal to the shorter text; more
    than the context, and a side without a length, are refused."""
    path, labels = "/v1/classify", {"model": "classifier", "input": "abcdef"}
    cut, said = warned(server, path, labels | {"truncate_prompt_tokens": 4})
    short = post(server, path, labels | {"input": "ab"})  # with [CLS] and [SEP]
    assert cut["data"][0]["probs"] == short["data"][0]["probs"]
    assert said[0]["param"] == "truncate_prompt_tokens" and "8 tokens" in said[0]["message"]
    assert "4 were left out" in said[0]["message"]
    pair = {"model": "reranker", "text_1": "ab", "text_2": "cdef"}
    scored, said = warned(server, "/v1/score", pair | {"truncate_prompt_tokens": 7})
    assert (
        scored["data"][0]["score"] == post(server, "/v1/score", pair | {"text_2": "cd"})["data"][0]["score"]
    )
    assert "2 were left out" in said[0]["message"]
    ranked, said = warned(
        server,
        "/v1/rerank",
        {"model": "reranker", "query": "ab", "documents": ["cdef"], "truncate_prompt_tokens": 7},
    )
    assert ranked["results"][0]["relevance_score"] == scored["data"][0]["score"] and len(said) == 1
    ids = post(server, "/tokenize", {"model": "embedder", "prompt": "abcdef"})["tokens"]
    cut = vectors(server, "abcdef", truncate_prompt_tokens=4, truncation_side="left")
    kept = post(server, "/v1/embeddings", {"model": "embedder", "input": [[ids[0], *ids[-3:]]]})["data"]
    assert np.array_equal(cut[0], np.array(kept[0]["embedding"], np.float32))
    for path, body in (
        ("/v1/classify", labels),
        ("/v1/score", pair),
        ("/v1/rerank", {"model": "reranker", "query": "ab", "documents": ["cdef"]}),
        ("/pooling", {"model": "states", "input": "abcdef"}),
        ("/v1/embeddings", {"model": "embedder", "input": "abcdef"}),
    ):
        for wrong in (0, -2, 100_000, 2**31, 1.5, "4", True):
            assert (
                refused_field(server, path, body | {"truncate_prompt_tokens": wrong})
                == "truncate_prompt_tokens"
            )
        assert refused_field(server, path, body | {"truncation_side": "left"}) == "truncation_side"
        assert refused_field(server, path, body | {"truncation_side": "up"}) == "truncation_side"
        whole, said = warned(server, path, body | {"truncate_prompt_tokens": -1})
        assert not said and ("data" in whole or "results" in whole)


def test_scores_without_an_activation(server: Running) -> None:
    """vLLM's `use_activation` on the paths that score."""
    pair = {"model": "reranker", "text_1": "ab", "text_2": "cdef"}
    raw = post(server, "/v1/score", pair | {"use_activation": False})["data"][0]["score"]
    assert post(server, "/v1/score", pair)["data"][0]["score"] == pytest.approx(1 / (1 + np.exp(-raw)))
    ranked = {"model": "reranker", "query": "ab", "documents": ["cdef"], "use_activation": False}
    assert post(server, "/v1/rerank", ranked)["results"][0]["relevance_score"] == raw
    labels = {"model": "classifier", "input": "abcdef"}
    logits = post(server, "/v1/classify", labels | {"use_activation": False})["data"]
    assert logits == post(server, "/v1/classify", labels | {"activation": False})["data"]
    both = labels | {"activation": False, "use_activation": False}
    assert refused_field(server, "/v1/classify", both) == "use_activation"
    assert refused_field(server, "/v1/rerank", ranked | {"raw_scores": True}) == "use_activation"


def test_prompts_of_completions_and_chats_are_cut_as_vllm_does(server: Running) -> None:
    """To their last tokens, with a warning; without the parameter they are refused."""
    cards = server.http().get("/v1/models").json()["data"]
    context = next(one["max_model_len"] for one in cards if one["id"] == "decoder")
    body = {"model": "decoder", "prompt": "abcdefgh", "max_tokens": 3, "temperature": 0}
    reply, said = warned(server, "/v1/completions", body | {"truncate_prompt_tokens": 4, "echo": True})
    assert reply["usage"]["prompt_tokens"] == 4 and len(said) == 1
    assert said[0]["param"] == "truncate_prompt_tokens" and "its last 4" in said[0]["message"]
    ids = post(server, "/tokenize", {"model": "decoder", "prompt": "abcdefgh"})["tokens"]
    read = post(server, "/v1/completions", body | {"prompt": [ids[0], *ids[-3:]], "echo": True})
    assert reply["choices"][0]["text"] == read["choices"][0]["text"]
    right = body | {"truncate_prompt_tokens": 4, "truncation_side": "right"}
    read = post(server, "/v1/completions", body | {"prompt": ids[:4]})
    assert warned(server, "/v1/completions", right)[0]["choices"] == read["choices"]
    long = body | {"prompt": LONG * 20}
    assert post(server, "/v1/completions", long, 400)["error"]["code"] == "context_length_exceeded"
    fitted, said = warned(server, "/v1/completions", long | {"truncate_prompt_tokens": -1})
    assert fitted["usage"]["prompt_tokens"] == context - 3 and len(said) == 1
    for wrong in (0, -2, context, "4"):
        asked = body | {"truncate_prompt_tokens": wrong}
        assert refused_field(server, "/v1/completions", asked) == "truncate_prompt_tokens"
    assert refused_field(server, "/v1/completions", body | {"truncation_side": "left"}) == "truncation_side"
    asked = body | {"truncate_prompt_tokens": 4, "suffix": "x"}
    assert refused_field(server, "/v1/completions", asked) == "truncate_prompt_tokens"
    chat = {"model": "decoder", "messages": [{"role": "user", "content": "abcdefgh"}], "max_tokens": 3}
    cut, said = warned(server, "/v1/chat/completions", chat | {"truncate_prompt_tokens": 5})
    assert cut["usage"]["prompt_tokens"] == 5 and [one["param"] for one in said] == ["truncate_prompt_tokens"]
