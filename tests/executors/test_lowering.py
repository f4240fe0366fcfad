"""The table of ops in native code and the ops of Python say the same."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

import headrace.ops
from headrace import _native
from headrace.errors import ProgramError
from headrace.executors.lowering import Lowering
from headrace.ops.act import FUNCTIONS, act
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gather import gather
from headrace.ops.op import Op
from headrace.ops.softcap import softcap
from headrace.ops.value import Value
from headrace.program.record import record


def lowered(define: Callable[[Builder], Value]) -> list[tuple[str, list[int], list[float]]]:
    instructions = Lowering(record(define), {}).instructions
    return [(name, ints, floats) for name, _, _, _, _, ints, floats in instructions]


def define(m: Builder) -> Value:
    x = embed(m.tokens, m.weight("table", 10, 8))
    return softcap(act(gather(x, m.rows), kind="gelu_tanh"), cap=30.0)


def test_every_op_is_in_the_native_table() -> None:
    modules = [
        importlib.import_module(f"headrace.ops.{m.name}") for m in pkgutil.iter_modules(headrace.ops.__path__)
    ]
    ops = {value.name for module in modules for value in vars(module).values() if isinstance(value, Op)}
    assert ops - set(_native.OP_FORMS) == {"linear"}  # always a fused_linear


def test_enumerations_name_what_the_ops_define() -> None:
    assert set(FUNCTIONS) < set(_native.OP_ENUMERATIONS["act"])
    assert _native.OP_ENUMERATIONS["route"] == ("softmax", "sigmoid")
    assert _native.OP_FORMS["route"] == (
        ("logits",),
        ("gates",),
        (),
        ("bias?",),
        ("kind:route", "top_k", "groups", "top_groups", "normalize"),
        ("scale",),
    )


def test_attributes_are_encoded_in_the_order_of_the_table() -> None:
    kind = _native.OP_ENUMERATIONS["act"].index("gelu_tanh")
    assert lowered(define) == [
        ("embed", [], []),
        ("gather", [], []),
        ("act", [kind], []),
        ("softcap", [], [30.0]),
    ]


@pytest.mark.parametrize("names", [(), ("cap", "other")])
def test_an_attribute_that_only_one_side_has_is_refused(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_native.OP_FORMS, "softcap", (("x",), ("y",), (), (), (), names))
    with pytest.raises(ProgramError, match=r"softcap has the attributes \['cap'\], native code"):
        lowered(define)


def test_an_op_without_a_line_in_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_native.OP_FORMS, "softcap")
    with pytest.raises(ProgramError, match="no instruction 'softcap'"):
        lowered(define)
