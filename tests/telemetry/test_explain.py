"""The tree of EXPLAIN: its parts follow each other and sum to the whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from msgspec import UNSET

from headrace.engine.call_times import drafted_work
from headrace.engine.request import Timing, Usage
from headrace.engine.request_trace import MAX_SHARES, RequestTrace, StepSums, StepTotals
from headrace.engine.step_share import StepShare
from headrace.engine.step_times import StepBound, StepWork
from headrace.executors.machine_limits import machine_limits
from headrace.llm import LLM
from headrace.telemetry.explain import explain, predict
from headrace.telemetry.explain_node import EngineTrace, ExplainNode, Stage


def share(kind: str, start_s: float, end_s: float, **more: float) -> StepShare:
    known = {"steps": 1, "seconds": end_s - start_s, "run_s": 0.0, "propose_s": 0.0, "predicted_s": 0.0}
    return StepShare(kind, start_s, end_s, **known | {"tokens": 1, "rows": 1, "batch_tokens": 1} | more)


def sums(node: ExplainNode) -> None:
    """What the children of every node take is the node's time."""
    if node.children is UNSET:
        return
    assert abs(sum(one.measured_s for one in node.children) - node.measured_s) < 2e-4, node.name
    for child in node.children:
        sums(child)


TRACE = EngineTrace(
    submitted_s=0.02,
    ended_s=0.3,
    usage=Usage(40, 9, 16, "evicted"),
    timing=Timing(0.01, 0.05, 0.27),
    shares=(
        share("prefill", 0.01, 0.04, predicted_s=0.03),
        share("decode", 0.06, 0.2, steps=8, seconds=0.1, predicted_s=0.11, drafted=4, accepted=3),
        share("prefill", 0.2, 0.25),
    ),
)


def test_parts_sum_and_say_what_they_are() -> None:
    stages = [Stage("prepare", 0.001, 0.015), Stage("template", 0.002, 0.004, {"messages": 2})]
    root = explain(stages, [TRACE], 0.31)
    sums(root)
    assert root.children is not UNSET
    assert [one.name for one in root.children] == ["other", "prepare", "other", "engine", "other"]
    engine = root.children[3]
    assert engine.children is not UNSET
    names = ["queue", "prefill 1", "wait for a turn", "decode", "prefill 2", "other"]
    assert [one.name for one in engine.children] == names
    first, decode = engine.children[1], engine.children[3]
    assert first.detail == {"tokens": 1, "batch": 1.0, "cached_tokens": 16, "cache_miss": "evicted"}
    assert first.predicted_s == 0.03
    assert decode.detail["steps"] == 8 and decode.detail["accepted"] == 3
    assert abs(decode.detail["waited_s"] - 0.04) < 1e-9


def test_several_prompts_are_concurrent() -> None:
    root = explain([], [TRACE, TRACE], 0.31)
    [engine] = [one for one in root.children or () if one.name == "engine"]
    assert [one.name for one in engine.children or ()] == ["prompt 0", "prompt 1"]
    for prompt in engine.children or ():
        assert prompt.detail["concurrent"] and prompt.measured_s == TRACE.ended_s - TRACE.submitted_s
        sums(prompt)


def test_nothing_noted() -> None:
    assert explain([], [], 0.5) == ExplainNode("request", 0.5)


def test_a_request_that_is_preempted_ten_thousand_times_takes_no_more_memory() -> None:
    trace, before = RequestTrace(submitted_s=0.0), StepSums()
    for number in range(10_000):
        step = call(number / 1000, before)
        before = step.after
        trace.add("decode" if number % 2 else "prefill", step, tokens=1)
    shares = trace.finish(0, 0)
    assert len(shares) == MAX_SHARES
    assert sum(one.tokens for one in shares) == sum(one.steps for one in shares) == 10_000
    ends = [one.end_s for one in shares]
    assert ends == sorted(ends)
    sums(explain([], [EngineTrace(0.0, 10.0, Usage(1, 1, 0), Timing(0, 0, 10.0), shares)], 10.0))


def call(at_s: float, before: StepSums) -> StepTotals:
    after = StepSums(before.steps + 1, before.seconds + 0.001, before.run_s + 0.0005, 0.0, 0.0, 1, 1)
    return StepTotals(at_s, at_s + 0.001, before, after)


def test_steps_in_a_row_are_one_part_and_those_of_others_are_not_counted() -> None:
    trace, before = RequestTrace(submitted_s=0.0), StepSums()
    for number in range(100):
        step = call(number / 1000, before)
        before = step.after
        if number not in (40, 41):  # others are computed
            trace.add("decode", step, tokens=2)
    [share] = trace.finish(6, 2)
    assert (share.steps, share.tokens, share.drafted, share.accepted) == (98, 196, 8, 6)
    assert abs(share.seconds - 0.098) < 1e-9 and abs(share.run_s - 0.049) < 1e-9
    assert (share.start_s, share.end_s) == (0.0, 0.1)


def test_a_step_in_which_one_choice_reads_and_others_generate_is_counted_once() -> None:
    trace, first = RequestTrace(submitted_s=0.0), call(0.0, StepSums())
    second = call(0.001, first.after)
    third = call(0.002, second.after)
    trace.add("decode", first, tokens=1)
    trace.add("decode", second, tokens=1)
    trace.add("prefill", second, tokens=5)  # another choice begins
    trace.add("decode", second, tokens=1)
    trace.add("decode", third, tokens=1)
    shares = trace.finish(0, 0)
    assert [(one.kind, one.steps, one.tokens) for one in shares] == [
        ("decode", 1, 2),
        ("prefill", 1, 6),
        ("decode", 1, 1),
    ]


def test_a_prediction_has_the_same_parts() -> None:
    stages = [Stage("prepare", 0.001, 0.015), Stage("template", 0.002, 0.004, {"messages": 2})]
    root = predict(stages, [TRACE], 0.02, {"kv_pages": 3})
    assert root.children is not UNSET and root.measured_s == 0
    assert [one.name for one in root.children] == ["prepare", "engine"]
    engine = root.children[1]
    assert engine.children is not UNSET and engine.detail == {"kv_pages": 3}
    assert [one.name for one in engine.children] == ["queue", "prefill 1", "decode", "prefill 2"]
    assert all(one.measured_s == 0 for one in engine.children)
    assert abs(root.predicted_s - (0.014 + 0.01 + 0.03 + 0.11)) < 1e-9


def test_what_was_never_measured_is_predicted_by_the_limits_of_the_machine(tmp_path: Path) -> None:
    machine_limits(1, tmp_path)
    with LLM("mini", threads=1, cache_dir=tmp_path, speculative="off") as llm:
        before = llm.explain("list files", max_tokens=40)
        assert before.predicted_s is not UNSET and before.predicted_s > 0
        bound, plan = llm.model.engine.limits.bound, llm.model.plan
        assert bound.token_s > 0 and bound.read_s == 0, "its weights stay in the caches"
        assert plan.operations_per_token / bound.token_s < 1e13
    assert bound.seconds(StepWork(100, 0, 0.0)) > bound.seconds(StepWork(0, 1, 0.0)) > 0
    assert StepBound(read_s=1.0, token_s=0.1).seconds(StepWork(0, 4, 0.0)) > 1.0
    assert StepBound().seconds(StepWork(0, 1, 0.0)) == 0


def test_a_step_that_checked_drafts_counts_all_its_tokens() -> None:
    """Of four steps of two rows one checked 6 tokens."""
    ran = SimpleNamespace(steps=4, plain_steps=3, draft_steps=[(6, 0.1)])
    plan = SimpleNamespace(work=StepWork(0, 2, 200.0), kind=(False, 0, 2, True, True, True))
    work, kind = drafted_work(plan, ran)  # type: ignore[arg-type]
    assert work == StepWork(0, 3.0, 300.0) and kind == (False, 0, 2, True, True, True)
    ran.steps, ran.draft_steps = 3, []
    work, kind = drafted_work(plan, ran)  # type: ignore[arg-type]
    assert work.rows == 2 and kind == (False, 0, 2, True, False, True)
