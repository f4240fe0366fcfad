"""SamplingParams rejects invalid values and names the parameter."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from headrace.errors import InvalidRequest
from headrace.sampling.params import (
    MAX_LOGIT_BIAS,
    MAX_N,
    MAX_STOPS,
    PARAMETERS,
    SamplingParams,
    parameters_table,
)

REFUSED: list[tuple[str, object]] = [
    ("temperature", -0.01),
    ("temperature", 100.5),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 101.0),
    ("presence_penalty", -101.0),
    ("frequency_penalty", 101.0),
    ("top_k", -1),
    ("top_k", 2**31),
    ("n", 0),
    ("n", MAX_N + 1),
    ("min_tokens", -1),
    ("max_tokens", 0),
    ("logprobs", -1),
    ("logprobs", 21),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("logit_bias", {-1: 0.0}),
    ("logit_bias", {0: 100.5}),
    ("logit_bias", {0: math.nan}),
    ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)),
    ("stop", ("",)),
    ("stop", ("x",) * (MAX_STOPS + 1)),
    ("stop", ("x" * 2049,)),
    ("stop", "x"),
    ("stop", (5,)),
    ("stop_token_ids", 5),
    ("stop_token_ids", (1.5,)),
    ("stop_token_ids", (1,) * 1025),
    ("temperature", "0.5"),
    ("temperature", None),
    ("temperature", True),
    ("max_tokens", 2.5),
    ("max_tokens", 10**400),
    ("n", 2.0),
    ("seed", 1.5),
    ("top_k", True),
    ("logit_bias", [1, 2]),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {5: "1"}),
    ("ignore_eos", 1),
]

ACCEPTED: list[tuple[str, object]] = [
    ("temperature", 0.0),
    ("temperature", 100.0),
    ("top_p", 0.0),
    ("top_p", 1e-9),
    ("top_p", 1.0),
    ("min_p", 0.0),
    ("min_p", 1.0),
    ("repetition_penalty", 1e-9),
    ("presence_penalty", -100.0),
    ("top_k", 2**31 - 1),
    ("n", MAX_N),
    ("max_tokens", 1),
    ("logprobs", 0),
    ("logprobs", 20),
    ("seed", 2**64 - 1),
    ("seed", -(2**63)),
    ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIAS), -100.0)),
    ("stop", ("x",) * MAX_STOPS),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_outside_its_limits_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as raised:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert raised.value.param == name
    assert raised.value.status == 400


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_value_at_its_limit_is_accepted(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


def test_replacing_a_value_checks_it_too() -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        replace(SamplingParams(), temperature=-5.0)


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    with pytest.raises(InvalidRequest, match=r"min_tokens \(5\) is larger than max_tokens \(4\)") as raised:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert raised.value.param == "min_tokens"


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_every_parameter_is_described_and_its_default_is_taken() -> None:
    assert tuple(PARAMETERS) == SamplingParams.__struct_fields__
    defaults = SamplingParams()
    for name, row in PARAMETERS.items():
        assert row.help and f"| `{name}` |" in parameters_table()
        assert row.default == getattr(defaults, name)
        row.check(row.default)


def test_ollama_has_each_name_once() -> None:
    names = [row.ollama for row in PARAMETERS.values() if row.ollama]
    assert len(set(names)) == len(names) == 15
