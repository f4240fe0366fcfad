"""The native table of sampling parameters fits SamplingParams."""

from __future__ import annotations

from headrace import _native
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import CONVERTED_FIELDS, SAME_FIELDS

KINDS = {"float": float, "int": int, "list": list}


def test_fields_have_the_names_types_and_defaults_of_parameters() -> None:
    params, native, kinds = SamplingParams(), _native.SampleSettings(), dict(_native.sampler_fields())
    assert set(SAME_FIELDS) | CONVERTED_FIELDS == set(kinds)
    for name in SAME_FIELDS:
        assert getattr(native, name) == getattr(params, name), name
        assert type(getattr(params, name)) is KINDS[kinds[name]], name


def test_every_field_keeps_what_is_written_to_it() -> None:
    native = _native.SampleSettings()
    lists = {"logit_bias": [(3, 0.5)], "bad_words": [[1, 2]], "ends": [7]}
    written = {
        name: lists[name] if kind == "list" else KINDS[kind](index + 1)
        for index, (name, kind) in enumerate(_native.sampler_fields())
    }
    for name, value in written.items():
        setattr(native, name, value)
    assert {name: getattr(native, name) for name in written} == written
