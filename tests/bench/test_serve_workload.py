"""Workloads: lengths, synthetic text, prompt files, traces."""

from __future__ import annotations

import json
import lzma
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headrace.bench.serve import trace
from headrace.bench.serve.length_distribution import parse_lengths
from headrace.bench.serve.synthetic_text import FIRST, SyntheticText
from headrace.bench.serve.trace import TraceRequest, read_trace
from headrace.bench.serve.workload import LoadRequest, SyntheticWorkload, TraceWorkload, read_prompts
from headrace.errors import UsageError

LEXICON = SyntheticText(("one", "two", "three"), (1, 2, 3), base_tokens=4, counted=True)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def tokens(prompt: object) -> int:
    """Token count as the server of the lexicon counts."""
    assert isinstance(prompt, str)
    first, *words = prompt.split(" ")
    assert first == FIRST
    return 4 + sum(LEXICON.costs[LEXICON.words.index(word)] for word in words)


@pytest.mark.parametrize(
    ("text", "low", "high", "mean"),
    [("512", 512, 512, 512), ("10:20", 10, 20, 15), ("100~10", 50, 150, 100), ("1~50", 1, 300, 20)],
)
def test_lengths_follow_their_specification(text: str, low: int, high: int, mean: float) -> None:
    lengths = parse_lengths(text, "prompt_tokens")
    rng = np.random.default_rng(0)
    drawn = [lengths.draw(rng) for _ in range(2000)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert np.mean(drawn) == pytest.approx(mean, rel=0.05)
    assert str(lengths) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "5:4", "1:2:3", "x", "1.5", "9999999", "5~"])
def test_invalid_lengths_name_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--output-tokens"):
        parse_lengths(text, "output_tokens")


def test_synthetic_prompts_have_the_drawn_length() -> None:
    workload = SyntheticWorkload(
        parse_lengths("20:200", "prompt_tokens"), parse_lengths("5:9", "output_tokens")
    )
    first = workload.asks(LEXICON, 50, seed=1, point=0)
    assert first == workload.asks(LEXICON, 50, seed=1, point=0)
    assert all(tokens(ask.prompt) == ask.wanted_tokens for ask in first)
    assert len({ask.wanted_tokens for ask in first}) > 20
    # Another point: different words, the same lengths.
    second = workload.asks(LEXICON, 50, seed=1, point=1)
    assert [ask.wanted_tokens for ask in first] == [ask.wanted_tokens for ask in second]
    assert [ask.output_tokens for ask in first] == [ask.output_tokens for ask in second]
    assert all(one.prompt != other.prompt for one, other in zip(first, second, strict=True))
    assert [ask.wanted_tokens for ask in workload.asks(LEXICON, 50, seed=2, point=0)] != [
        ask.wanted_tokens for ask in first
    ]


def test_a_trace_of_azures(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        AZURE + "2023-11-16 18:15:46.6805900,374,44\n\n2023-11-16 18:15:50.9305900,396,109\n",
        encoding="utf-8",
    )
    found = read_trace(path)
    assert [(one.prompt_tokens, one.output_tokens) for one in found] == [(374, 44), (396, 109)]
    assert [one.at_s for one in found] == pytest.approx([0.0, 4.25], abs=1e-5)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_of_mooncakes(tmp_path: Path, compressed: bool) -> None:
    rows = [
        {"timestamp": 500, "input_length": 513, "output_length": 6, "hash_ids": [0, 1]},
        {"timestamp": 1750, "input_length": 600, "output_length": 7, "hash_ids": [0, 2]},
    ]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    path = tmp_path / ("trace.jsonl.xz" if compressed else "trace.jsonl")
    path.write_bytes(lzma.compress(content) if compressed else content)
    assert read_trace(path) == [TraceRequest(0.0, 513, 6, (0, 1)), TraceRequest(1.25, 600, 7, (0, 2))]


def test_equal_blocks_give_equal_words() -> None:
    requests = (
        TraceRequest(0.0, 700, 5, (8, 9)),
        TraceRequest(1.0, 1100, 5, (8, 7, 9)),
        TraceRequest(2.0, 700, 5, (6, 9)),
        TraceRequest(3.0, 30, 5),
    )
    asks = TraceWorkload(Path("trace"), requests).asks(LEXICON, 4, seed=0, point=0)
    assert [tokens(ask.prompt) for ask in asks] == [700, 1100, 700, 30]
    assert [ask.at_s for ask in asks] == [0.0, 1.0, 2.0, 3.0]
    words = [str(ask.prompt).split() for ask in asks]

    def shared(one: int, other: int) -> int:
        pairs = zip(words[one], words[other], strict=False)
        return next((index for index, (a, b) in enumerate(pairs) if a != b), 0)

    block = len(LEXICON.words_of(512 - 4, np.random.default_rng([0, 3, 0, 8])))
    assert block <= shared(0, 1) - 1 < block + 20  # beyond the block, only by chance
    assert shared(0, 2) < 20


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "begins with ''"),
        ("a,b\n1,2\n", "begins with 'a,b'"),
        (AZURE, "no requests"),
        (AZURE + "2023-11-16 18:15:46.68,374\n", "line 2"),
        (AZURE + "2023-11-16 18:15:46.68,374,0\n", "at least 1"),
        (AZURE + "2023-11-16 18:15:46.68,1,1\n2023-11-16 18:15:45.68,1,1\n", "line 3"),
        ('{"timestamp": 1, "input_length": 4}', "output_length"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 1, "hash_ids": [1, 2]}', "2 hash ids"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 1}\n[1]', "line 2"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 1}\nnull', "no JSON object"),
        ('{"timestamp": 1e400, "input_length": 4, "output_length": 1}', "line 1"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 1e300}', "at most"),
        ('{"timestamp": 1, "input_length": 1e400, "output_length": 1}', "line 1"),
        ('{"timestamp": 1, "input_length": 4, "output_length": 1, "x": ' + "[" * 100_000, "line 1"),
        (
            '{"timestamp": 1, "input_length": 4, "output_length": 1}\n'
            '{"timestamp": 1e15, "input_length": 4, "output_length": 1}',
            "3,660 days",
        ),
    ],
)
def test_an_invalid_trace_names_the_line_and_the_formats(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "trace"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=r"--trace .*trace") as caught:
        read_trace(path)
    assert named in caught.value.message
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "absent.xz")


def test_a_compressed_trace_that_is_cut_or_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.xz"
    whole = lzma.compress((AZURE + "2023-11-16 18:15:46.68,374,44\n" * 100).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(path)
    path.write_bytes(whole)
    assert len(read_trace(path)) == 100
    monkeypatch.setattr(trace, "MAX_BYTES", 1_000)
    with pytest.raises(UsageError, match="more than 1,000 bytes"):
        read_trace(path)


def test_the_real_traces_are_read_completely(shared_data: Path) -> None:
    azure = read_trace(shared_data / "traces/azure2023/AzureLLMInferenceTrace_conv.csv")
    mooncake = read_trace(shared_data / "traces/mooncake/synthetic_trace.jsonl.xz")
    assert (len(azure), len(mooncake)) == (19_366, 3_993)
    assert azure[-1].at_s == pytest.approx(3501.72, abs=0.01)
    assert mooncake[0].blocks == tuple(range(79))


def test_a_trace_of_nothing_but_line_ends_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.xz"
    path.write_bytes(lzma.compress(AZURE.encode() + b"\n" * 2_000_000, preset=0))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="no requests"):
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_trace_of_too_many_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.bench.serve.trace.MAX_REQUESTS", 2)
    path, line = tmp_path / "trace.csv", "2023-11-16 18:15:46.68,374,44\n"
    path.write_text(AZURE + line * 2)
    assert len(read_trace(path)) == 2
    path.write_text(AZURE + line * 3)
    with pytest.raises(UsageError, match="more than 2 requests"):
        read_trace(path)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "Hi"}]
    rows = [{"prompt": "One"}, {"turns": ["Two", "Three"], "max_tokens": 3}, {"messages": messages}]
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    asks = read_prompts(path, "chat", 9).asks(LEXICON, 4, seed=0, point=0)
    assert asks == [
        LoadRequest("One", 9),
        LoadRequest("Two", 3),
        LoadRequest(messages, 9),
        LoadRequest("One", 9),
    ]
    assert asks[0].body("m", "chat") == {
        "model": "m",
        "messages": [{"role": "user", "content": "One"}],
        "max_tokens": 9,
    }
    assert asks[1].body("m", "completions") == {"model": "m", "prompt": "Two", "max_tokens": 3}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "no prompts"),
        ('{"prompt": "a"}\n[1]', "line 2: not an object"),
        ("{", "line 1"),
        ('{"text": "a"}', "no prompt"),
        ('{"prompt": ""}', "no prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "--endpoint chat"),
    ],
)
def test_an_invalid_prompt_file_names_the_line(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_prompts(path, "completions", 9)
    assert named in caught.value.message
