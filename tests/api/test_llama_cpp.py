"""llama.cpp's own API: completions, tokens, properties, and OpenAI's endpoints without a version."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fake import CONTEXT_LENGTH, FakeEngine, FakeModel
from in_process import Running

MODEL = "fake/model"
Serve = Callable[..., Running]


def body_of(server: Running, path: str = "/completion", **body: Any) -> Any:
    reply = server.http().post(path, json={"prompt": "hello", "n_predict": 4, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(server: Running, path: str = "/completion", status: int = 400, **body: Any) -> dict[str, Any]:
    reply = server.http().post(path, json={"prompt": "hello", "n_predict": 4, **body})
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["code"] == status
    return error


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    body = {"prompt": "hello", "n_predict": 4, "stream": True, **body}
    reply = server.http().post("/completion", json=body)
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line]


def test_a_whole_completion(server: Running) -> None:
    found = body_of(server, n_predict=3, return_tokens=True)
    assert (found["content"], found["tokens"]) == ("a b", list(b"a b"))
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert (found["tokens_predicted"], found["tokens_evaluated"], found["truncated"]) == (3, 6, False)
    assert found["model"] == MODEL and found["index"] == 0 and found["prompt"] == "hello"
    settings = found["generation_settings"]
    assert (settings["n_predict"], settings["repeat_penalty"], settings["seed"]) == (3, 1.0, 7)
    times = found["timings"]
    assert (times["prompt_n"] + times["cache_n"], times["predicted_n"]) == (6, 3)
    assert times["predicted_per_second"] == pytest.approx(2e3 / times["predicted_ms"])
    assert body_of(server)["tokens"] == []
    assert body_of(server, "/completions")["content"] == "a bé"


def test_a_stream_ends_with_everything_that_is_known(server: Running) -> None:
    *chunks, last = events_of(server, n_predict=3, timings_per_token=True)
    assert "".join(chunk["content"] for chunk in chunks) == "a b"
    assert all(chunk["stop"] is False and chunk["timings"] for chunk in chunks)
    assert last["stop"] is True and last["content"] == "" and last["timings"]["predicted_n"] == 3


def test_a_list_of_prompts_gives_a_list(server: Running) -> None:
    prompts = ["hello", [104, 105], {"prompt_string": "x"}]
    found = body_of(server, prompt=prompts)
    assert [one["index"] for one in found] == [0, 1, 2]
    assert [bytes(t for t in one.prompt if t < 256) for one in server.model.engine.submitted] == [
        b"hello",
        b"hi",
        b"x",
    ]
    body_of(server, prompt=[1, 2, "hi", 3])
    assert list(server.model.engine.submitted[-1].prompt) == [1, 2, 104, 105, 3]
    image = [{"prompt_string": "x", "multimodal_data": ["aGk="]}]
    assert refused(server, prompt=image)["param"] == "prompt"
    assert refused(server, prompt={"prompt_string": "x", "multimodal_data": {}})["param"] == "prompt"
    assert refused(server, prompt=[])["param"] == "prompt"


def test_parameters_reach_the_sampler_under_their_names(server: Running) -> None:
    body_of(server, repeat_penalty=1.5, top_k=3, seed=-1, logit_bias=[[5, 2], ["ab", False]])
    params = server.model.engine.submitted[-1].params
    assert (params.repetition_penalty, params.top_k, params.seed) == (1.5, 3, None)
    assert params.logit_bias == {5: 2.0, 97: -100.0, 98: -100.0}
    body_of(server, samplers=["top_k", "temperature"], top_p=0.5, top_k=7)
    params = server.model.engine.submitted[-1].params
    assert (params.top_k, params.top_p) == (7, 1.0)
    assert refused(server, samplers=["temperature", "top_k"])["param"] == "samplers"
    assert refused(server, repeat_penalty=-1.0)["param"] == "repeat_penalty"
    assert refused(server, n_predict=0)["param"] == "n_predict"
    assert refused(server, post_sampling_probs=True)["param"] == "post_sampling_probs"
    assert refused(server, nonsense=1)["param"] == "nonsense"
    assert body_of(server, id_slot=3)["warnings"][0]["param"] == "id_slot"


def test_no_prompt_is_reused_where_that_is_asked_for(server: Running) -> None:
    body_of(server)
    body_of(server, cache_prompt=False)
    shared, own = (one.cache_salt for one in server.model.engine.submitted)
    assert shared != own


def test_grammars_of_both_kinds(server: Running) -> None:
    body_of(server, grammar='root ::= "a"{5,5}')
    assert server.model.engine.submitted[-1].constraint.kind == "ebnf"
    body_of(server, json_schema={"const": 1}, grammar="")
    assert server.model.engine.submitted[-1].constraint.kind == "json_schema"
    assert refused(server, grammar="root ::= (")["param"] == "grammar"
    assert refused(server, grammar='root ::= "a"', json_schema={})["param"] == "grammar"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for field, value in (("grammar", 'root ::= "a"'), ("json_schema", {"const": 1})):
        assert server.http().post("/v1/chat/completions", json={**chat, field: value}).status_code == 200
        assert server.model.engine.submitted[-1].constraint is not None


def test_fields_of_the_reply_can_be_chosen(server: Running) -> None:
    found = body_of(server, response_fields=["content", "generation_settings/n_predict"])
    assert found == {"content": "a bé", "generation_settings/n_predict": 4}
    assert refused(server, response_fields=["nothing"])["param"] == "response_fields"


def test_a_long_prompt_is_named_with_its_length(server: Running) -> None:
    error = refused(server, prompt="x" * (CONTEXT_LENGTH + 1))
    assert error["type"] == "exceed_context_size_error"
    assert "exceeds the available context size" in error["message"]


def test_what_stands_between_two_texts(server: Running) -> None:
    body = {"prompt": "p", "input_prefix": "a", "input_suffix": ""}
    assert body_of(server, "/infill", **body)["content"] == "a bé"
    assert bytes(server.model.engine.submitted[-1].prompt[1:]) == b"ap"
    extra = [{"filename": "f.h", "text": "t"}]
    assert body_of(server, "/infill", **body, input_extra=extra)["warnings"][0]["param"] == "input_extra"
    assert bytes(server.model.engine.submitted[-1].prompt[1:]) == b"f.h\nt\nap"
    error = refused(server, "/infill", **body, input_extra=[{"filename": 1}])
    assert error["type"] == "invalid_request_error"


def test_tokens_in_llama_cpps_shape(server: Running) -> None:
    http = server.http()
    assert http.post("/tokenize", json={"content": "hi"}).json() == {"tokens": [104, 105]}
    assert http.post("/tokenize", json={"content": "h", "add_special": True}).json()["tokens"] == [256, 104]
    pieces = http.post("/tokenize", json={"content": "é", "with_pieces": True}).json()["tokens"]
    assert pieces == [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert http.post("/tokenize", json={"prompt": "h", "with_pieces": True}).status_code == 400
    assert http.post("/tokenize", json={"content": "h", "add_special_tokens": True}).status_code == 400


def test_properties_and_places(server: Running) -> None:
    http = server.http()
    props = http.get("/props").json()
    assert props["total_slots"] == 32 and props["model_alias"] == MODEL
    assert props["default_generation_settings"]["n_ctx"] == CONTEXT_LENGTH
    slots = http.get("/slots").json()
    assert len(slots) == 32 and not any(slot["is_processing"] for slot in slots)


def test_openais_endpoints_without_a_version(server: Running) -> None:
    http, chat = server.http(), {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    reply = http.post("/chat/completions", json=chat).json()
    assert reply["choices"][0]["message"]["content"] == "a "
    assert reply["system_fingerprint"].startswith("b") and reply["timings"]["predicted_n"] == 2
    assert (
        http.post("/v1/chat/completions", json=chat).json()["system_fingerprint"]
        == (reply["system_fingerprint"])
    )
    counted = http.post("/chat/completions/input_tokens", json={"messages": chat["messages"]}).json()
    assert counted["input_tokens"] == reply["usage"]["prompt_tokens"]
    assert http.get("/models").json()["data"][0]["id"] == MODEL
    assert http.post("/embeddings", json={"input": "x"}).json()["error"]["code"] == 400
    for path, content in (("/chat/completions", None), ("/v1/chat/completions", "")):
        first, *_ = http.post(path, json=chat | {"stream": True}).text.splitlines()
        delta = json.loads(first.removeprefix("data: "))["choices"][0]["delta"]
        assert delta == {"role": "assistant", "content": content}
    assert http.post("/embedding", json={"content": "x"}).json()["error"]["code"] == 400


def test_a_wrong_key_is_an_error_of_authentication(serve: Serve) -> None:
    running = serve(FakeModel(engine=FakeEngine()), api_key=("secret",))
    reply = running.http().post("/completions", json={"prompt": "x"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")


def test_the_prompt_is_shown_where_it_is_asked_for(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    for path in ("/chat/completions", "/v1/chat/completions"):
        shown = server.http().post(path, json=body | {"verbose": True}).json()
        assert "hello" in shown["__verbose"]["prompt"] and "warnings" not in shown
        assert "__verbose" not in server.http().post(path, json=body | {"verbose": False}).json()
    streamed = server.http().post("/chat/completions", json=body | {"verbose": True, "stream": True}).text
    chunks = [line for line in streamed.splitlines() if line.startswith("data: {")]
    assert ["__verbose" in chunk for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


def test_prompts_of_all_chats_are_shown_by_a_setting(serve: Serve) -> None:
    http = serve(show_prompts=True).http()
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    for path in ("/chat/completions", "/v1/chat/completions"):
        assert "hello" in http.post(path, json=body).json()["__verbose"]["prompt"]
        assert "__verbose" not in http.post(path, json=body | {"verbose": False}).json()


def test_slots_and_metrics_can_be_switched_off(serve: Serve) -> None:
    server = serve(disable_slots=True, disable_metrics=True)
    for path, name in (("/slots", "disable_slots"), ("/metrics", "disable_metrics")):
        reply = server.http().get(path)
        assert reply.status_code == 501 and name in reply.text


def test_a_last_message_is_continued_or_answered(server: Running) -> None:
    body = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "continue_final_message": True,
        "add_generation_prompt": True,
    }
    reply = server.http().post("/chat/completions", json=body)
    assert reply.status_code == 400 and "exclude each other" in reply.text


def test_metrics_under_its_names(server: Running) -> None:
    predicted = body_of(server)["tokens_predicted"]
    reply = server.http().get("/metrics")
    assert int(reply.headers["process-start-time-unix"]) > 0
    found = dict(line.split() for line in reply.text.splitlines() if line.startswith("llamacpp:"))
    assert float(found["llamacpp:tokens_predicted_total"]) == predicted
    assert float(found["llamacpp:prompt_tokens_total"]) > 0
