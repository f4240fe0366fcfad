"""`headrace bench quality`: the same figures as transformers, what llama.cpp wrote, real greedy answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from headrace.bench.batch_run import run_together
from headrace.bench.quality.comparison import compare
from headrace.bench.quality.llama_cpp_base import MAGIC
from headrace.bench.quality.measure import Side, measure, measure_against_file
from headrace.bench.quality.next_token_model import NextTokenModel, log_softmax
from headrace.bench.quality.own_text import TextOrder
from headrace.bench.quality.report import QualityReport
from headrace.engine.request import EngineRequest
from headrace.errors import CorruptFile, UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from tiny import tiny_model

OPTIONS = EngineOptions(kv_cache_dtype="f32", cache_dir=None, quantization="keep", threads=2)
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 20
LENGTH = 48
ORDER = TextOrder(windows=6, length=LENGTH, continued=12, text=TEXT, source="foxes")


def disturbed(folder: Path, *, by: float) -> Path:
    """A model whose weights differ by noise."""
    path = tiny_model(folder)
    file = path / "model.safetensors"
    tensors = load_file(file)
    rng = np.random.default_rng(3)
    noisy = {
        name: (value + by * value.std() * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, value in tensors.items()
    }
    save_file(noisy, file, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disturbed(tmp_path_factory.mktemp("other"), by=0.3)


def compared(model: Path, reference: Path, order: TextOrder = ORDER) -> QualityReport:
    return measure(Side(str(model), OPTIONS), Side(str(reference), OPTIONS), order)


def transformers_logs(folder: Path, windows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Log probabilities [N, L - 1, V] by transformers, in float32 with a float64 softmax."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.from_numpy(windows.astype(np.int64))).logits[:, :-1]
        logs: NDArray[np.float64] = torch.log_softmax(logits.double(), dim=-1).numpy()
    return logs


def test_figures_are_those_of_transformers(plain: Path, other: Path) -> None:
    report = compared(other, plain)
    scorer = NextTokenModel(str(plain), OPTIONS, longest=LENGTH)
    ids = scorer.tokenizer.encode(TEXT, add_special=False)
    body, count = LENGTH - 1, 6  # each window begins with <s>
    spare = len(ids) - count * body
    starts = [index * body + spare * index // count for index in range(count)]
    windows = np.array([[0, *ids[start : start + body]] for start in starts], np.int32)
    own, its = transformers_logs(plain, windows), transformers_logs(other, windows)
    following = windows[:, 1:, None].astype(np.int64)
    kl = (np.exp(own) * (own - its)).sum(axis=-1)
    assert report.tokens == kl.size == 6 * (LENGTH - 1)
    assert report.kl.mean == pytest.approx(kl.mean(), rel=1e-3)
    assert report.kl.median == pytest.approx(np.median(kl), rel=1e-3)
    assert report.kl.p999 == pytest.approx(np.quantile(kl, 0.999), rel=1e-3)
    assert report.top1 == pytest.approx((own.argmax(-1) == its.argmax(-1)).mean())
    for name, logs in (("perplexity", its), ("reference_perplexity", own)):
        loss = -np.take_along_axis(logs, following, axis=-1).mean()
        assert getattr(report, name) == pytest.approx(math.exp(loss), rel=1e-3)
    low, high = report.kl.interval
    assert low < report.kl.mean < high
    assert report.worst[0].kl == pytest.approx(kl.max(), rel=1e-3)


def test_a_model_is_equal_to_itself(plain: Path) -> None:
    report = compared(plain, plain)
    assert report.kl.mean == report.kl.p999 == 0
    assert report.top1 == 1
    assert report.perplexity == report.reference_perplexity
    assert report.greedy is not None
    assert (report.greedy.same, report.greedy.median) == (1, 12)


def test_greedy_lengths_are_those_of_real_answers(plain: Path, other: Path) -> None:
    report = compared(other, plain)
    scorer = NextTokenModel(str(plain), OPTIONS, longest=LENGTH)
    ids = scorer.tokenizer.encode(TEXT, add_special=False)
    spare = len(ids) - 6 * (LENGTH - 1)
    starts = [index * (LENGTH - 1) + spare * index // 6 for index in range(6)]
    prompts = [(0, *ids[start : start + 23]) for start in starts]  # half of a window
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers: list[list[list[int]]] = []
    for folder in (plain, other):
        loaded = load_model(str(folder), OPTIONS)
        rows: list[list[int]] = [[] for _ in prompts]
        for arrival in run_together(loaded.engine, [EngineRequest(prompt=p, params=params) for p in prompts]):
            rows[arrival.index] += arrival.tokens
        loaded.close()
        answers.append(rows)
    lengths = [
        next((at for at, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), 12)
        for one, two in zip(*answers, strict=True)
    ]
    assert min(lengths) < 12, "the disturbed model must differ"
    assert report.greedy is not None
    assert report.greedy.median == np.median(lengths)
    assert report.greedy.same == sum(length == 12 for length in lengths) / 6


def test_the_reference_writes_the_text_where_none_is_given(plain: Path, other: Path) -> None:
    order = TextOrder(windows=4, length=40, continued=0)
    one, two = compared(other, plain, order), compared(other, plain, order)
    still = {"tokens_per_s": 0.0, "reference_tokens_per_s": 0.0}
    assert replace(one, **still) == replace(two, **still), "the same seed, the same text"
    assert (one.windows, one.tokens, one.greedy) == (4, 4 * 39, None)
    assert "written by" in one.source


def llama_cpp_file(path: Path, tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> Path:
    """As llama.cpp writes it: `tokens` [N, n], `logits` [N, n - 1 - n // 2, V]."""
    chunks, context = tokens.shape
    vocabulary = logits.shape[-1]
    parts = [MAGIC, np.array([context, vocabulary, chunks], "<i4").tobytes(), tokens.astype("<i4").tobytes()]
    for row in logits.reshape(-1, vocabulary):
        top = row.max()
        low = max(row.min(), top - 16)
        scale = np.float32((top - low) / 65535)
        minimum = np.float32(low - top - np.log(np.exp(row - top).sum()))
        codes = np.where(row > low, np.rint((row - low) / scale), 0).astype("<u2")
        padding = np.zeros(vocabulary % 2, "<u2")
        parts += [np.array([scale, minimum], "<f4").tobytes(), codes.tobytes(), padding.tobytes()]
    path.write_bytes(b"".join(parts))
    return path


def base_of(plain: Path, tmp_path: Path) -> Path:
    """The reference's file over three windows, whose first token llama.cpp replaces by <s>."""
    scorer = NextTokenModel(str(plain), OPTIONS, longest=32)
    tokens = np.array(scorer.tokenizer.encode(TEXT, add_special=False)[: 3 * 32], np.int32).reshape(3, 32)
    read = tokens.copy()
    read[:, 0] = 0
    logits = np.stack([np.concatenate(list(scorer.log_probs(row, 16))) for row in read])
    return llama_cpp_file(tmp_path / "base.kld", tokens, logits.astype(np.float32))


def test_a_file_of_llama_cpp_is_a_reference(plain: Path, other: Path, tmp_path: Path) -> None:
    file = base_of(plain, tmp_path)
    same = measure_against_file(Side(str(plain), OPTIONS), file, windows=8)
    assert (same.windows, same.tokens) == (3, 3 * 15)
    assert abs(same.kl.mean) < 1e-5, "16 bits of a log probability"
    different = measure_against_file(Side(str(other), OPTIONS), file, windows=8)
    scorers = [NextTokenModel(str(folder), OPTIONS, longest=32) for folder in (plain, other)]
    tokens = np.array(scorers[0].tokenizer.encode(TEXT, add_special=False)[: 3 * 32], np.int32).reshape(3, 32)
    tokens[:, 0] = 0
    own, its = scorers
    expected = [compare(own.log_probs(row, 16), its.log_probs(row, 16), row[17:]).kl.mean() for row in tokens]
    assert different.kl.mean == pytest.approx(np.mean(expected), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GGUF" + data[4:], "is not a file"),
        (lambda data: data[:-5], "cut short"),
        (lambda data: data[:8] + np.array([2, 5, -1], "<i4").tobytes() + data[20:], "damaged"),
        (lambda data: data[:8] + np.array([2**31 - 1] * 3, "<i4").tobytes() + data[20:], "cut short"),
    ],
)
def test_damaged_files_are_refused(
    plain: Path, tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    file = base_of(plain, tmp_path)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(CorruptFile, match=message):
        measure_against_file(Side(str(plain), OPTIONS), file, windows=8)


def test_models_of_other_tokens_are_refused(plain: Path, tmp_path: Path) -> None:
    path = tiny_model(tmp_path)
    file = path / "tokenizer.json"
    state = json.loads(file.read_text())
    letters = state["model"]["vocab"]
    letters["o"], letters["e"] = letters["e"], letters["o"]
    file.write_text(json.dumps(state))
    with pytest.raises(UsageError, match="do not have the same tokens"):
        compared(path, plain)


def test_a_text_that_is_too_short_is_refused(plain: Path) -> None:
    with pytest.raises(UsageError, match=r"the text has \d+ tokens, a window needs 47"):
        compared(plain, plain, TextOrder(windows=2, length=LENGTH, continued=0, text="short", source="x"))


def test_probabilities_that_are_no_numbers_are_an_error() -> None:
    logits = np.zeros((2, 5), np.float32)
    broken = logits.copy()
    broken[1, 2] = np.nan
    with pytest.raises(UsageError, match="not all numbers"):
        compare([log_softmax(logits)], [log_softmax(broken)], np.array([1, 2], np.int32))


def test_blocks_need_not_be_cut_in_the_same_places() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 7)).astype(np.float32)
    own, its = log_softmax(rows), log_softmax(rows * 1.1)
    following = np.arange(9, dtype=np.int32) % 7
    whole = compare([own], [its], following)
    cut = compare([own[:4], own[4:]], [its[:1], its[1:6], its[6:]], following)
    assert np.array_equal(whole.kl, cut.kl)
    assert np.array_equal(whole.loss, cut.loss)
