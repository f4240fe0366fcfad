"""Of several servers behind one address, what only one would have is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace.api.http.several_fronts import LOCAL, STORED
from headrace.config.cluster_settings import check_fronts
from headrace.config.settings import Settings
from headrace.errors import UsageError

KEPT = LOCAL | STORED
FRONTS = {"fronts": 2}


@pytest.fixture
def url(serve: Callable[..., Any]) -> str:
    return serve(cluster=FRONTS).url


def refused(reply: httpx.Response) -> str:
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["code"] == "one_front_only"
    return error["message"]


@pytest.mark.parametrize("path", sorted(KEPT))
def test_paths_about_the_store_are_refused(url: str, path: str) -> None:
    method = "POST" if path.startswith(("/api", "/v1/load", "/v1/unload")) else "GET"
    reply = httpx.request(method, url + path + ("a" if path.endswith("_") else ""), json={})
    if reply.headers["content-type"].startswith("application/json") and "error" in reply.json():
        error = reply.json()["error"]
        said = error if isinstance(error, str) else error["message"]
        assert KEPT[path] in said and reply.status_code == 400
    else:
        raise AssertionError(reply.text)


def test_paths_that_only_begin_alike_are_not(url: str) -> None:
    assert httpx.get(url + "/v1/filesystem").status_code == 404
    body = {"input": "abc"}
    assert httpx.post(url + "/v1/responses/input_tokens", json=body).status_code == 200


def test_responses_are_not_kept_and_say_so(url: str) -> None:
    body: dict[str, Any] = {"input": "abc", "max_output_tokens": 4}
    reply = httpx.post(url + "/v1/responses", json=body).json()
    assert reply["store"] is False
    assert any(one["param"] == "store" and "not kept" in one["message"] for one in reply["warnings"])
    silent = httpx.post(url + "/v1/responses", json={**body, "store": False}).json()
    assert silent["store"] is False and not silent.get("warnings")
    for more in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        assert "stored responses" in refused(httpx.post(url + "/v1/responses", json={**body, **more}))


def test_idempotency_keys_are_refused(url: str) -> None:
    headers = {"idempotency-key": "abcdefgh"}
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    assert "Idempotency-Key" in refused(httpx.post(url + "/v1/chat/completions", json=body, headers=headers))
    assert httpx.post(url + "/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key_rpm": 5}, "key_rpm is counted by each server"),
        ({"key_max_concurrency": 5}, "key_max_concurrency is counted"),
        ({"budgets": {"a": {"usd_per_day": 1}}}, "budgets need a ledger"),
        ({"adapt": {"enabled": True}}, "adapt keeps examples"),
    ],
)
def test_settings_that_only_one_would_count_are_refused(given: dict[str, Any], says: str) -> None:
    check_fronts(Settings(**given))
    check_fronts(Settings(cluster={"fronts": 1}, **given))
    with pytest.raises(UsageError, match=says):
        check_fronts(Settings(cluster=FRONTS, **given))


def test_a_common_ledger_makes_budgets_and_limits_common() -> None:
    common: dict[str, Any] = {"cluster": FRONTS, "ledger": "postgresql://db/h"}
    check_fronts(Settings(budgets={"a": {"usd_per_day": 1}}, **common))
    check_fronts(Settings(key_rpm=5, key_tpm=5, key_max_concurrency=5, **common))
