"""What editors see of `LLM`'s keywords is what is accepted at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from headrace.errors import InvalidRequest
from headrace.inference import keywords
from headrace.inference.keyword_types import ChatKeywords, GenerateKeywords, ModelKeywords, SamplingKeywords
from headrace.inference.keywords import chat_request, completion_request
from headrace.llm import LLM, AsyncLLM
from headrace.loading.options import EngineOptions
from headrace.sampling.parameters import Kind
from headrace.sampling.params import PARAMETERS

TYPES: Mapping[Kind, Any] = {
    "integer": int,
    "number": float,
    "switch": bool,
    "texts": Sequence[str],
    "ids": Sequence[int],
    "biases": Mapping[int, float],
    "switch or never": bool | Literal["never"],
}


def members(annotation: Any) -> set[Any]:
    """The parts of a union."""
    return set(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else {annotation}


def test_sampling_keywords_are_those_of_the_table() -> None:
    hints = get_type_hints(SamplingKeywords)
    assert list(hints) == list(PARAMETERS)
    for name, row in PARAMETERS.items():
        wanted = members(TYPES[row.kind]) | ({NoneType} if row.optional else set())
        wanted |= {str} if name == "stop" else set()
        assert members(hints[name]) == wanted, name


def test_model_keywords_are_those_of_the_options() -> None:
    hints, fields = get_type_hints(ModelKeywords), get_type_hints(EngineOptions)
    assert hints.keys() == set(EngineOptions.__struct_fields__)
    for name, hint in hints.items():
        wanted = members(fields[name]) | ({str} if name == "cache_dir" else set())
        assert members(hint) == wanted, name


def test_the_other_keywords_are_those_that_requests_read() -> None:
    sampling = get_type_hints(SamplingKeywords).keys()
    generate, chat = get_type_hints(GenerateKeywords).keys(), get_type_hints(ChatKeywords).keys()
    assert generate - sampling == {
        *keywords.CONSTRAINTS,
        *keywords.SCALING,
        *keywords.REQUEST,
        *keywords.URGENCY,
        keywords.GUARD,
        keywords.ADAPTER,
        keywords.EXPLAIN,
    }
    assert chat - generate == {*keywords.CHAT, *keywords.REASONING}
    completion_request("x", dict.fromkeys(generate - sampling))
    chat_request([{"role": "user", "content": "x"}], dict.fromkeys(chat - sampling))


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_every_method_is_typed(kind: type) -> None:
    for name, keywords_of in {
        "generate": GenerateKeywords,
        "generate_batch": GenerateKeywords,
        "stream": GenerateKeywords,
        "chat": ChatKeywords,
        "stream_chat": ChatKeywords,
        "__init__": ModelKeywords,
    }.items():
        kind_of_keywords = list(get_type_hints(getattr(kind, name)).items())
        assert any(get_args(hint) == (keywords_of,) for _, hint in kind_of_keywords), name


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(
        InvalidRequest, match="generate\\(\\) got unknown 'max_new_tokens': did you mean 'max_tokens'"
    ):
        completion_request("x", {"max_new_tokens": 5})


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files("headrace").joinpath("py.typed").is_file()
