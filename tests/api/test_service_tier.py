"""OpenAI's service tiers are classes of the engine's priority."""

from __future__ import annotations

import pytest
from in_process import Running

from headrace.engine.turns import Tier, tier_of

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/responses": {"input": "a", "store": False},
}
TIERS = {"auto": Tier.STANDARD, "default": Tier.STANDARD, "flex": Tier.BATCH, "priority": Tier.INTERACTIVE}


@pytest.mark.parametrize("path", list(BODIES))
def test_a_tier_is_a_class(server: Running, path: str) -> None:
    http = server.http()
    for tier, expected in TIERS.items():
        reply = http.post(path, json=BODIES[path] | {"service_tier": tier})
        assert reply.status_code == 200, reply.text
        assert tier_of(server.model.engine.submitted[-1].priority) is expected


def test_a_tier_and_a_priority_contradict_each_other(server: Running) -> None:
    http = server.http()
    reply = http.post("/v1/chat/completions", json=CHAT | {"service_tier": "flex", "priority": 3})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "service_tier"
    reply = http.post("/v1/chat/completions", json=CHAT | {"service_tier": "auto", "priority": 3})
    assert reply.status_code == 200
    assert server.model.engine.submitted[-1].priority == 3


def test_an_unknown_tier_is_refused_by_name(server: Running) -> None:
    reply = server.http().post("/v1/completions", json={"prompt": "a", "service_tier": "gold"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "service_tier")
