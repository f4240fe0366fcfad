"""The scheduler of models with recurrent states."""

from __future__ import annotations

from scheduling import scheduler, sequence, step


def test_running_sequences_have_slots_of_their_own_and_give_them_back():
    engine = scheduler(slots=2)
    first, second, third = (sequence(i, 5) for i in range(3))
    for one in (first, second, third):
        engine.add(one)
    step(engine)
    assert {first.state_slot, second.state_slot} == {0, 1} and third.state_slot == -1
    freed = first.state_slot
    engine.finish(first)
    step(engine)
    assert (first.state_slot, third.state_slot) == (-1, freed)


def test_a_recurrent_model_takes_nothing_from_the_prefix_tree_and_says_so():
    engine = scheduler(recurrent=True)
    prompt = list(range(12))
    first = sequence(0, prompt)
    engine.add(first)
    step(engine)
    engine.finish(first)
    again, disabled = sequence(1, prompt), sequence(2, prompt, cache=False)
    engine.add(again)
    engine.add(disabled)
    assert step(engine) == [(1, 0, 12, True), (2, 0, 12, True)]
    assert (again.cached_tokens, again.cache_miss_reason) == (0, "recurrent_state")
    assert (disabled.cached_tokens, disabled.cache_miss_reason) == (0, "disabled")
    engine.finish(again)
    engine.finish(disabled)
    assert engine.free_pages == 64


def test_choices_of_a_recurrent_model_compute_their_prompts_side_by_side():
    engine = scheduler(recurrent=True)
    for choice in range(3):
        engine.add(sequence(choice, list(range(9)), request_id="one", choice=choice))
    assert step(engine) == [(0, 0, 9, True), (1, 0, 9, True), (2, 0, 9, True)]


def test_a_preempted_sequence_of_a_recurrent_model_starts_again():
    engine = scheduler(pages=12, slots=2, recurrent=True)
    engine.add(sequence(0, 8, room=20))
    engine.add(sequence(1, 8, room=20))
    step(engine)
    assert len(engine.running) == 2
    while not engine.waiting:
        step(engine)
    [running], [waiting] = engine.running, engine.waiting
    assert (waiting.computed, waiting.state_slot, waiting.preemptions) == (0, -1, 1)
    engine.finish(running)
    tokens = len(waiting.tokens)
    assert step(engine) == [(1, 0, tokens, True)]
