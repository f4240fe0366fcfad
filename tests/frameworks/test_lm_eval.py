"""lm-evaluation-harness asks a model of this server through its API of completions."""

from __future__ import annotations

from typing import Any

import pytest
from in_process import Running

pytest.importorskip("lm_eval", reason="needs lm-eval[api]")


def model(server: Running, kind: str, path: str) -> Any:
    from lm_eval.api.registry import get_model

    return get_model(kind)(
        model=server.model.name,
        base_url=server.url + path,
        tokenizer_backend=None,
        tokenized_requests=False,
        num_concurrent=2,
        max_length=512,
    )


def request(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_generated_text(server: Running) -> None:
    asked = [
        request("generate_until", f"Count to {n}.", {"max_gen_toks": 6, "until": ["\n"]}) for n in (3, 4)
    ]
    found = model(server, "local-completions", "/v1/completions").generate_until(asked)
    direct = server.http().post(
        "/v1/completions",
        json={"prompt": "Count to 3.", "max_tokens": 6, "temperature": 0, "stop": ["\n"], "seed": 1234},
    )
    assert len(found) == 2 and found[0] == direct.json()["choices"][0]["text"]


def test_logprobs_of_given_answers(server: Running) -> None:
    """As tasks with given answers need them: the prompt is echoed with its logprobs."""
    pytest.importorskip("transformers", reason="the tokenizer of such tasks is one of transformers")
    from lm_eval.api.registry import get_model

    asking = get_model("local-completions")(
        model=server.model.name,
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(server.model.folder),
        num_concurrent=1,
        max_length=512,
    )
    answers = [(" 4", "2 + 2 ="), (" blue", "2 + 2 =")]
    found = asking.loglikelihood([request("loglikelihood", start, end) for end, start in answers])
    assert len(found) == 2
    for (logprob, is_greedy), (end, start) in zip(found, answers, strict=True):
        before, behind = asking._encode_pair(start, end)
        body = {"prompt": before + behind, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        reply = server.http().post("/v1/completions", json=body)
        listed = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert logprob == pytest.approx(sum(listed[len(before) : len(before + behind)]), abs=1e-3)
        assert is_greedy in (True, False)
