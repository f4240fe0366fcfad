"""Recording, verifying, fusing, planning and printing programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import ProgramError
from headrace.models.registry import find_model
from headrace.ops.add import add
from headrace.ops.attend import attend
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gated_act import gated_act
from headrace.ops.gather import gather
from headrace.ops.kv_write import kv_write
from headrace.ops.linear import linear
from headrace.ops.rms_norm import rms_norm
from headrace.ops.route import route
from headrace.ops.value import Value
from headrace.program.fuse import fuse
from headrace.program.plan import plan_arena
from headrace.program.program import Instruction, Program
from headrace.program.record import record
from headrace.program.text import format_program
from headrace.program.verify import verify

CONFIG: dict[str, object] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def program_of(model_type: str) -> Program:
    return record(find_model({**CONFIG, "model_type": model_type}).define)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "phi3", "qwen2", "qwen3"])
def test_a_layer_becomes_six_native_instructions(model_type: str) -> None:
    program = verify(program_of(model_type))
    fused = fuse(program)
    layer = ["fused_linear", "rope_kv_write", "attend", "fused_linear", "fused_linear", "fused_linear"]
    names = [instruction.name for instruction in fused.instructions]
    assert names == ["embed", *layer * 3, "gather", "fused_linear"]
    assert {id(i) for i in fused.expanded()} == {id(i) for i in program.instructions}
    assert fused.output is program.output


def test_what_fuses_into_a_linear() -> None:
    fused = fuse(program_of("llama"))
    parts = [[part.name for part in instruction.parts] for instruction in fused.instructions]
    assert parts[1] == ["rms_norm", "linear", "linear", "linear"]
    assert parts[4] == ["linear", "add"]
    assert parts[5] == ["rms_norm", "linear", "linear", "gated_act"]
    assert parts[-1] == ["rms_norm", "linear"]


def test_a_value_with_other_readers_is_not_fused_away() -> None:
    def define(m: Builder) -> Value:
        table = m.weight("table", 10, 8)
        x = embed(m.tokens, table)
        n = rms_norm(x, m.weight("norm", 8), eps=1e-6)
        y = linear(n, m.weight("w", 8, 8))
        return linear(gather(add(add(y, n), y), m.rows), table)  # n and y are read again

    names = [i.name for i in fuse(verify(record(define))).instructions]
    assert names == ["embed", "rms_norm", "fused_linear", "add", "add", "gather", "fused_linear"]


def test_a_router_is_not_fused_with_the_shared_expert() -> None:
    def define(m: Builder) -> Value:
        x = embed(m.tokens, m.weight("x", 10, 8))
        logits = linear(x, m.weight("router", 4, 8), None)
        route(logits, None, kind="softmax", top_k=2, groups=1, top_groups=1, normalize=1, scale=1.0)
        gate, up = linear(x, m.weight("gate", 16, 8), None), linear(x, m.weight("up", 16, 8), None)
        return gated_act(gate, up, kind="silu")

    fused = fuse(record(define)).instructions
    groups = [[part.name for part in instruction.parts] for instruction in fused if instruction.parts]
    assert groups == [["linear"], ["linear", "linear", "gated_act"]]


def test_fusion_does_not_cross_an_effect() -> None:
    def define(m: Builder) -> Value:
        x = embed(m.tokens, m.weight("table", 10, 8))
        cache = m.cache(0, 8)
        a = linear(x, m.weight("a", 8, 8))
        kv_write(a, a, m.slots, cache)
        b = linear(x, m.weight("b", 8, 8))
        y = attend(
            b,
            cache,
            m.query_starts,
            m.lengths,
            m.block_tables,
            head_dim=8,
            value_dim=8,
            page_tokens=16,
            scale=1.0,
            window=0,
            softcap=0.0,
        )
        return gather(y, m.rows)

    groups = [i for i in fuse(verify(record(define))).instructions if i.name == "fused_linear"]
    assert [len(group.parts) for group in groups] == [1, 1]


def broken(change: Callable[[list[Instruction]], object]) -> Program:
    program = program_of("llama")
    instructions = list(program.instructions)
    change(instructions)
    return replace(program, instructions=tuple(instructions))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ins: ins.pop(0), "before it is defined"),
        (lambda ins: ins.insert(1, ins[0]), "defined twice"),
        (lambda ins: ins.pop(), "never computed"),
        (lambda ins: ins.pop(next(i for i, x in enumerate(ins) if x.name == "kv_write")), "before this step"),
        (lambda ins: ins.__setitem__(2, replace(ins[2], outputs=ins[0].outputs)), "should have shapes|twice"),
    ],
)
def test_verify_refuses(change: Callable[[list[Instruction]], object], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify(broken(change))


def test_verify_refuses_a_fused_instruction_that_hides_an_input() -> None:
    fused = fuse(program_of("llama"))
    wrong = replace(fused.instructions[1], inputs=fused.instructions[1].inputs[1:])
    with pytest.raises(ProgramError, match="must take"):
        verify(replace(fused, instructions=(fused.instructions[0], wrong, *fused.instructions[2:])))


def test_symbols_refuse_to_be_numbers() -> None:
    def define(m: Builder) -> Value:
        x = embed(m.tokens, m.weight("table", 10, 8))
        if x:
            pass
        return x

    with pytest.raises(TypeError, match="cannot branch"):
        record(define)
    with pytest.raises(TypeError, match="config only"):
        record(lambda m: int(m.tokens))


def test_a_weight_used_with_two_shapes_is_refused() -> None:
    def define(m: Builder) -> Value:
        m.weight("w", 8, 8)
        return m.weight("w", 8, 9)

    with pytest.raises(ProgramError, match="w is used as"):
        record(define)


@pytest.mark.parametrize("bad", [("T", 7), ("T", 8, 8)])
def test_signatures_refuse_wrong_shapes(bad: tuple[int | str, ...]) -> None:
    with pytest.raises(ProgramError, match=r"linear|rms_norm"):
        linear.output_shapes((bad, (4, 8), None))
    with pytest.raises(ProgramError, match="is required"):
        linear.output_shapes((("T", 8), None, None))
    with pytest.raises(ProgramError, match="multiple"):
        rms_norm.output_shapes((("T", 9), (2,)))


@given(tokens=st.integers(1, 600), rows=st.integers(1, 40), fused=st.booleans())
def test_live_buffers_never_overlap(tokens: int, rows: int, fused: bool) -> None:
    program = program_of("qwen3")
    program = fuse(program) if fused else program
    plan = plan_arena(program, max_tokens=tokens, max_rows=rows)
    alive: dict[Value, tuple[int, int]] = {}
    for index, instruction in enumerate(program.instructions):
        for value in (*instruction.inputs, *instruction.outputs):
            if value is not None and value.kind == "temp":
                alive[value] = (alive.get(value, (index,))[0], index)
    alive[program.output] = (alive[program.output][0], len(program.instructions))
    buffers = [(life, plan.placements[value]) for value, life in alive.items()]
    for i, (life, place) in enumerate(buffers):
        assert place.offset % 64 == 0
        assert place.offset + place.nbytes <= plan.nbytes
        for other_life, other in buffers[:i]:
            together = life[0] <= other_life[1] and other_life[0] <= life[1]
            apart = place.offset + place.nbytes <= other.offset or other.offset + other.nbytes <= place.offset
            assert not together or apart


def test_the_arena_is_much_smaller_than_all_buffers() -> None:
    program = fuse(program_of("llama"))
    plan = plan_arena(program, max_tokens=64, max_rows=4)
    assert plan.nbytes < sum(place.nbytes for place in plan.placements.values()) / 2


def test_a_program_prints_every_instruction_and_its_parts() -> None:
    program = fuse(program_of("llama"))
    text = format_program(program, plan_arena(program, max_tokens=8, max_rows=8))
    assert text.count("rope_kv_write(") == 3
    assert "    t1:Tx32 = rms_norm(t0, model.layers.0.input_layernorm.weight, eps=1e-06)" in text
    assert text.endswith("return t51:Rx100")
