"""Classifiers from a few examples: an embedder's vectors and a logistic regression on them, in NumPy.

The head of SetFit (Tunstall et al. 2022) without its fine-tuning of the encoder. Training has no randomness.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec import Struct

from headrace.engine.unit_rows import unit_rows
from headrace.errors import CorruptFile, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.ops.value import Array
from headrace.tasks.embed import EmbedOptions, embed_texts
from headrace.tasks.label_scores import Classification, Doubles, activated, best_label
from headrace.tasks.task_limits import (
    MAX_LABELS,
    check_finite,
    check_label_characters,
    check_strings,
)
from headrace.weights.confined import confined
from headrace.weights.fitted_head import SETTINGS_FILE, WEIGHTS_FILE, read_fitted
from headrace.weights.safetensors.reader import SafetensorsFile
from headrace.weights.safetensors.writer import write_safetensors
from headrace.weights.tensor_output import TensorOutput

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

STRENGTH = 1e-4
"""Of ten times more, embeddings of length 1 hardly tell 77 labels apart: 54 % right of Banking77 instead of
60 %, with ten examples of each and the model `embed`; of a hundred times more 44 %."""
MAX_ITERATIONS = 500
MAX_EXAMPLES = 2500
MAX_WORK = 20_000  # examples times labels of one request, a second or two
TOLERANCE = 1e-6
_FITTING = ThreadPoolExecutor(1, thread_name_prefix="headrace-fit")
"""One fit of a request at a time: it takes a second of a core. Its thread begins with the first."""
Embed = Callable[[Sequence[str]], Array]
AsyncEmbed = Callable[[Sequence[str]], Awaitable[Array]]
Examples = Mapping[str, Sequence[str]] | Sequence[tuple[str, str]]


class FitState(Struct, frozen=True, eq=False):
    """Where a fit stands after so many steps: `weights` and those before, both [labels, size + 1]."""

    steps: int
    weights: Doubles
    last: Doubles


Watch = Callable[[FitState], None]
"""Told after each step; it may wait, keep the state, or raise."""


class LogisticRegression(Struct, frozen=True, eq=False):
    """`weights` [labels, size] and `bias` [labels] of vectors of length 1."""

    labels: tuple[str, ...]
    weights: Array
    bias: Array

    def classify(self, vectors: Array, *, raw: bool = False) -> list[Classification]:
        """What it says of vectors [texts, size]; `raw` scores are logits."""
        logits = vectors @ self.weights.T + self.bias
        return [best_label(row, self.labels) for row in (logits if raw else activated(logits, "softmax"))]


class FittedClassifier:
    """A regression and the name of the encoder that its vectors come from."""

    def __init__(self, regression: LogisticRegression, encoder: str) -> None:
        self.regression, self.encoder = regression, encoder

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels, sorted."""
        return self.regression.labels

    def save(self, folder: str | Path) -> None:
        """Write it to a folder: weights as safetensors, labels and the encoder's name as JSON. A server
        serves the folder as a model."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        tensors = {"weights": self.regression.weights, "bias": self.regression.bias}
        with (target / WEIGHTS_FILE).open("wb") as file:
            write_safetensors(file, [_output(*one) for one in tensors.items()], lambda _: None)
        settings = {"encoder": self.encoder, "labels": list(self.labels)}
        (target / SETTINGS_FILE).write_text(json.dumps(settings, ensure_ascii=False, indent=1) + "\n")


class TextClassifier(FittedClassifier):
    """Made by `LLM.fit_classifier`."""

    def __init__(self, regression: LogisticRegression, encoder: str, embed: Embed) -> None:
        super().__init__(regression, encoder)
        self._embed = embed

    def classify(self, texts: str | Sequence[str]) -> list[Classification]:
        """Of each text the probabilities of the labels."""
        several = [texts] if isinstance(texts, str) else list(texts)
        return self.regression.classify(self._embed(several)) if several else []


class AsyncTextClassifier(FittedClassifier):
    """Made by `AsyncLLM.fit_classifier`."""

    def __init__(self, regression: LogisticRegression, encoder: str, embed: AsyncEmbed) -> None:
        super().__init__(regression, encoder)
        self._embed = embed

    async def classify(self, texts: str | Sequence[str]) -> list[Classification]:
        """See `TextClassifier.classify`."""
        several = [texts] if isinstance(texts, str) else list(texts)
        return self.regression.classify(await self._embed(several)) if several else []


def _output(name: str, values: Array) -> TensorOutput:
    data = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    return TensorOutput(name, "F32", values.shape, data.nbytes, (), lambda: iter([data]))


def load(folder: Path, size: int, encoder: Collection[str] | None = None) -> LogisticRegression:
    """Read what `save` wrote. InvalidRequest where it belongs to none of the names `encoder` (None: any), or
    to vectors of another `size`; CorruptFile where the files contradict each other."""
    settings = read_fitted(folder)
    if settings is None:
        raise InvalidRequest(
            f"{SETTINGS_FILE} is missing: name a folder that TextClassifier.save wrote", param="folder"
        )
    try:
        with SafetensorsFile(confined(folder, WEIGHTS_FILE)) as file:
            weights, bias = (file.float32(file.tensors[name]) for name in ("weights", "bias"))
    except FileNotFoundError:
        message = f"{WEIGHTS_FILE} is missing: save the classifier again"
        raise InvalidRequest(message, param="folder") from None
    except CorruptFile:
        raise
    except Exception as error:  # whatever the reader says
        raise CorruptFile(f"the classifier cannot be read: {error}") from None
    count = len(settings.labels)
    fits = weights.ndim == 2 and weights.shape[0] == count and bias.shape == (count,)
    if not fits:
        raise CorruptFile(f"{WEIGHTS_FILE} does not fit the {count:,} labels of {SETTINGS_FILE}")
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise CorruptFile(f"{WEIGHTS_FILE} has numbers that are not finite")
    if (encoder is not None and settings.encoder not in encoder) or weights.shape[1] != size:
        raise InvalidRequest(
            f"the classifier was made with {settings.encoder[:200]!r} and vectors of"
            f" {weights.shape[1]:,} numbers, this is {min(encoder or ('',), key=len)!r} with {size:,}: load"
            " that encoder",
            param="folder",
        )
    return LogisticRegression(settings.labels, weights, bias)


@lru_cache(16)
def fitted_regression(folder: Path, loaded_s: int, size: int) -> LogisticRegression:
    """That of a served model, read anew where the model was loaded again."""
    return load(folder, size)


def fitted_logits(model: LoadedModel, vectors: Array) -> Array:
    """What the regression of a served model says of the vectors [texts, size] of its encoder."""
    size = model.engine.limits.embedding_size
    regression = fitted_regression(model.folder, model.created_s, size)
    return unit_rows(vectors) @ regression.weights.T + regression.bias


def check_examples(
    examples: Mapping[str, Sequence[str]] | Sequence[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Texts and their labels, from pairs (text, label) or from texts by label."""
    if isinstance(examples, Mapping):
        for texts in examples.values():
            check_strings(texts, "examples")
        pairs = [(text, label) for label, texts in examples.items() for text in texts]
    else:
        pairs = [_pair(one, index) for index, one in enumerate(examples)]
    check_strings([label for _, label in pairs], "examples")
    labels = {label for _, label in pairs}
    if not 2 <= len(labels) <= MAX_LABELS or not all(label.strip() for label in labels):
        raise InvalidRequest(
            f"examples have {len(labels):,} labels: give 2 to {MAX_LABELS:,}, none of them empty",
            param="examples",
        )
    return [text for text, _ in pairs], [label for _, label in pairs]


def _pair(given: object, index: int) -> tuple[str, str]:
    shown = repr(given)[:100]
    both = cast("Sequence[object]", given) if isinstance(given, tuple | list) else ()
    texts = [one for one in both if isinstance(one, str)]
    if len(both) != 2 or len(texts) != 2:
        raise InvalidRequest(
            f"examples[{index}] is {shown}, it must be two texts: (text, label)", param="examples"
        )
    return texts[0], texts[1]


async def classify_by_examples(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    examples: Sequence[tuple[str, str]],
    call: CallContext,
    *,
    truncate: bool = False,
) -> list[Classification]:
    """What a regression on the vectors of `examples`, pairs (text, label), says of each text. It is made for
    this call. InvalidRequest for more examples times labels than MAX_WORK."""
    known, labels = check_examples(examples)
    check_label_characters(set(labels), len(texts), "examples")
    work = len(known) * len(set(labels))
    if len(known) > MAX_EXAMPLES or work > MAX_WORK:
        raise InvalidRequest(
            f"{len(known):,} examples of {len(set(labels)):,} labels are too many for one request: send at"
            f" most {MAX_EXAMPLES:,}, and {MAX_WORK:,} by examples times labels, or use fit_classifier",
            param="examples",
        )
    vectors = unit_rows(
        await embed_texts(runner, name, [*known, *texts], call, EmbedOptions(truncate=truncate))
    )

    def fitted() -> list[Classification]:
        return fit(vectors[: len(known)], labels).classify(vectors[len(known) :])

    return await asyncio.get_running_loop().run_in_executor(_FITTING, fitted)


def fit(
    vectors: Array,
    labels: Sequence[str],
    *,
    strength: float = STRENGTH,
    watch: Watch | None = None,
    state: FitState | None = None,
) -> LogisticRegression:
    """Softmax regression on vectors [texts, size] with an L2 penalty of `strength`, by gradient descent with
    Nesterov's momentum and a step below the loss's curvature; the same numbers each time, also where it goes
    on from a `state`."""
    check_finite(strength, "strength")
    if strength <= 0:
        raise InvalidRequest(f"strength is {strength}, it must be more than 0", param="strength")
    names = tuple(sorted(set(labels)))
    index = {name: place for place, name in enumerate(names)}
    x = np.concatenate([vectors.astype(np.float64), np.ones((len(vectors), 1))], axis=1)
    wanted = np.zeros((len(labels), len(names)))
    wanted[np.arange(len(labels)), [index[label] for label in labels]] = 1
    shares = wanted.sum(0)
    per_text = (len(labels) / (len(names) * shares))[[index[label] for label in labels]]  # labels weigh alike
    found = descend(x, wanted, per_text / len(labels), strength, watch, state)
    return LogisticRegression(names, found[:, :-1].astype(np.float32), found[:, -1].astype(np.float32))


def descend(
    x: Doubles,
    wanted: Doubles,
    per_text: Doubles,
    strength: float,
    watch: Watch | None = None,
    state: FitState | None = None,
    *,
    steps: int | None = None,
) -> Doubles:
    """Weights [labels, size] of rows `x` [texts, size] that are `wanted` [texts, labels], weigh `per_text`,
    after so many steps at most; the last number of a row is 1, its bias."""
    curvature = 0.5 * float((per_text * np.square(x).sum(1)).sum()) + strength
    root = np.sqrt(strength / curvature)
    momentum = (1 - root) / (1 + root)
    weights = ahead = np.zeros((wanted.shape[1], x.shape[1]))
    first = 0
    if state is not None:
        first, weights = state.steps, state.weights
        ahead = weights + momentum * (weights - state.last)
    decay = np.full(x.shape[1], strength)
    decay[-1] = strength * 1e-3  # the bias is hardly held back
    for step in range(first, steps or MAX_ITERATIONS):
        logits = x @ ahead.T
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        gradient = ((shares - wanted) * per_text[:, None]).T @ x + ahead * decay
        last, weights = weights, ahead - gradient / curvature
        ahead = weights + momentum * (weights - last)
        if np.abs(gradient).max() < TOLERANCE:
            break
        if watch is not None:
            watch(FitState(step + 1, weights, last))
    return weights
