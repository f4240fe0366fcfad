"""The Python front door, on the model that ships inside the package."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from headrace import LLM, AsyncLLM
from headrace.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    TemplateMissing,
    UsageError,
)
from headrace.executors.native import NativeExecutor
from tiny import tiny_model

OPENING = "It was a cold evening, and the old house"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("novelette", max_num_seqs=8) as loaded:
        yield loaded


def test_generate_and_stream_agree(llm: LLM) -> None:
    whole = llm.generate(OPENING, max_tokens=40, seed=3)
    pieces = list(llm.stream(OPENING, max_tokens=40, seed=3))
    assert whole.text == "".join(piece.text for piece in pieces)
    assert len(whole.tokens) == whole.usage.completion_tokens <= 40
    assert [piece.completion is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert whole.seed == 3
    assert 0 < whole.timing.first_token_s <= whole.timing.total_s


def test_a_reported_seed_reproduces(llm: LLM) -> None:
    first = llm.generate(OPENING, max_tokens=30)
    assert llm.generate(OPENING, max_tokens=30, seed=first.seed).text == first.text
    assert llm.generate(OPENING, max_tokens=30, seed=first.seed + 1).text != first.text


def test_beams_and_scores_of_prompts(llm: LLM) -> None:
    found = llm.generate(OPENING, use_beam_search=True, n=3, max_tokens=8)
    scores = [choice.score for choice in found.choices]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    greedy = llm.generate(OPENING, temperature=0, max_tokens=8, prompt_logprobs=1, banned_strings=["zz"])
    assert found.text != "" and greedy.choices[0].score is None
    assert len(greedy.prompt_logprobs) == greedy.usage.prompt_tokens - 1
    assert all(len(entry.top) == 1 and entry.rank >= 1 for entry in greedy.prompt_logprobs)


def test_a_batch_keeps_its_order_and_its_bytes(llm: LLM) -> None:
    prompts = [f"{OPENING} {i}" for i in range(12)]
    together = llm.generate_batch(prompts, max_tokens=12, seed=5)
    assert [c.text for c in together] == [llm.generate(p, max_tokens=12, seed=5).text for p in prompts]


def test_choices(llm: LLM) -> None:
    completion = llm.generate(OPENING, n=4, max_tokens=10, seed=1, temperature=1.0)
    assert len(completion.choices) == 4
    assert len({choice.text for choice in completion.choices}) > 1
    assert completion.choices[0].text == llm.generate(OPENING, max_tokens=10, seed=1, temperature=1.0).text


def test_async_llm(llm: LLM) -> None:
    messages = [{"role": "user", "content": OPENING}]

    async def run() -> list[str]:
        async with AsyncLLM("novelette", max_num_seqs=8) as model:
            plain = await model.generate(OPENING, max_tokens=9, seed=2)
            chunks = [chunk.text async for chunk in model.stream(OPENING, max_tokens=9, seed=2)]
            chat = await model.chat(messages, max_tokens=9, seed=2)
            chat_chunks = [chunk.text async for chunk in model.stream_chat(messages, max_tokens=9, seed=2)]
            batch = await model.generate_batch([OPENING, "b"], max_tokens=9, seed=2)
            async for _ in model.stream(OPENING, max_tokens=400, ignore_eos=True):
                break
            await model.generate(OPENING, max_tokens=2)
            assert model.model.engine.status().running == 0
        texts = ["".join(chunks), chat.text, "".join(chat_chunks), *(one.text for one in batch)]
        return [plain.text, *texts]

    plain, streamed, chat, chat_streamed, first, second = asyncio.run(run())
    assert plain == streamed == first == llm.generate(OPENING, max_tokens=9, seed=2).text
    assert chat == chat_streamed == llm.chat(messages, max_tokens=9, seed=2).text
    assert second == llm.generate("b", max_tokens=9, seed=2).text


def test_leaving_a_stream_early_cancels(llm: LLM) -> None:
    for piece in llm.stream(OPENING, max_tokens=400, ignore_eos=True):
        if piece.tokens:
            break
    llm.generate(OPENING, max_tokens=2)  # two steps later at the most
    status = llm.model.engine.status()
    assert status.running == 0
    assert status.available_pages == status.page_count


def test_a_stream_that_is_never_read_cancels(llm: LLM) -> None:
    llm.stream(OPENING, max_tokens=400, ignore_eos=True)
    closed = llm.stream(OPENING, max_tokens=400, ignore_eos=True)
    closed.close()
    assert list(closed) == []
    llm.generate(OPENING, max_tokens=2)
    assert llm.model.engine.status().running == 0


def test_a_stream_keeps_its_model() -> None:
    pieces = list(LLM().stream(OPENING, max_tokens=5))
    assert pieces[-1].completion is not None


def test_a_batch_larger_than_the_queue(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(llm.model.engine.limits, max_waiting=0)
    monkeypatch.setattr(llm.model.engine, "limits", small)
    prompts = [f"{OPENING} {i}" for i in range(13)]
    batch = llm.generate_batch(prompts, n=3, max_tokens=2, seed=5)
    assert [c.text for c in batch] == [llm.generate(p, n=3, max_tokens=2, seed=5).text for p in prompts]


def test_a_batch_with_a_prompt_that_cannot_run_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded):
        llm.generate_batch([OPENING, OPENING, "word " * 600], max_tokens=300, ignore_eos=True)
    llm.generate(OPENING, max_tokens=2)
    assert llm.model.engine.status().running == 0


@pytest.mark.parametrize("prompt", [None, 5, [1.5, 2], ["a"], b"abc"])
def test_what_is_no_prompt(llm: LLM, prompt: object) -> None:
    with pytest.raises(InvalidRequest, match="neither a text nor a sequence of token ids"):
        llm.generate(prompt, max_tokens=2)  # type: ignore[arg-type]


def test_token_ids_of_any_sequence(llm: LLM) -> None:
    texts = [llm.generate(ids, max_tokens=4, seed=1).text for ids in ([5, 6], (5, 6), np.array([5, 6]))]
    assert texts == texts[:1] * 3


def test_options_of_the_wrong_type(tmp_path: Path) -> None:
    for options in (
        {"threads": "2"},
        {"threads": 1.5},
        {"threads": 5000},
        {"max_model_len": True},
        {"kv_cache_memory": "4G"},
    ):
        with pytest.raises(UsageError, match=next(iter(options))):
            LLM(**options)
    with pytest.raises(ModelNotFound):
        LLM("")
    LLM(quantization="int8", cache_dir=str(tmp_path / "cache")).close()
    assert list((tmp_path / "cache").rglob("*"))


def test_arguments_that_do_nothing_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="unknown 'temperatur': did you mean 'temperature'"):
        llm.generate(OPENING, temperatur=0.5)
    with pytest.raises(InvalidRequest, match="unknown 'weight'; known: backend, cache_dir"):
        LLM(weight="int4")
    with pytest.raises(InvalidRequest, match=r"top_p is 1\.5"):
        llm.generate(OPENING, top_p=1.5)
    with pytest.raises(ContextLengthExceeded, match="the limit is 512"):
        llm.generate("word " * 600)
    with pytest.raises(ModelNotFound):
        LLM("there/is-no-such-model", offline=True)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with (
        LLM(tiny_model(tmp_path, chat_template=None)) as llm,
        pytest.raises(TemplateMissing, match="no chat"),
    ):
        llm.chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_quantized_weights_continue_a_story(llm: LLM, weights: str) -> None:
    with LLM("novelette", quantization=weights) as quantized:
        text = quantized.generate(OPENING, max_tokens=60, temperature=0.0).text
    assert len(text.split()) > 20
    if weights == "bf16":  # the shipped weights' own type
        assert text == llm.generate(OPENING, max_tokens=60, temperature=0.0).text


def test_a_dropped_model_stops_its_engine() -> None:
    llm = LLM()
    engine = weakref.ref(llm.model.engine)
    llm.generate(OPENING, max_tokens=2)
    del llm
    gc.collect()
    assert engine() is None


def test_a_closed_model_has_freed_its_memory() -> None:
    def executors() -> int:
        gc.collect()
        return sum(type(thing) is NativeExecutor for thing in gc.get_objects())

    before = executors()
    with LLM() as llm:
        assert executors() == before + 1
    assert executors() == before
    assert not llm.model.engine.status().alive


def test_a_script_that_never_closes_ends_quietly() -> None:
    script = "from headrace import LLM\nprint(LLM().generate('Once', max_tokens=3, seed=1).text)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""


def test_stories260k_writes_its_documented_text(shared_data: Path) -> None:
    folder = shared_data / "stories260K"
    with LLM(folder / "hf") as llm:
        text = llm.generate("", temperature=0.0, max_tokens=200).text
    assert text == (folder / "expected_greedy_200.txt").read_text()


def test_the_import_is_light() -> None:
    script = (
        "import sys, json, headrace; print(json.dumps(sorted(m for m in sys.modules if m.split('.')[0] in "
        "('torch', 'numpy', 'starlette', 'tokenizers', 'typer', 'rich'))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(run.stdout) == []


def test_outputs_match_what_is_asked_for(llm: LLM) -> None:
    prompt = "The answer is"
    assert llm.generate(prompt, choice=["yes", "no"]).text in ("yes", "no")
    assert re.fullmatch("[0-9]{3}", llm.generate(prompt, regex="[0-9]{3}").text)
    assert json.loads(llm.generate(prompt, json_schema={"const": [1, "a"]}).text) == [1, "a"]
    assert llm.generate(prompt, grammar='start: "a" "b"').text == "ab"
    assert llm.generate(prompt, json_object=True, max_tokens=3).text.startswith("{")
    assert llm.generate(prompt, choice=["maybe"]).text == "maybe"
    with pytest.raises(InvalidRequest, match="choice and regex both say"):
        llm.generate(prompt, choice=["a"], regex="b")
    with pytest.raises(InvalidRequest, match="no value matches the schema"):
        llm.generate(prompt, json_schema={"not": {}})
