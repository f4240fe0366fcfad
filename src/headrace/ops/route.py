"""Expert routing: the experts of each token, and their gates."""

import numpy as np
from numpy.typing import NDArray

from headrace.ops.op import op
from headrace.ops.value import Array


@op("T E, E? -> T E", tolerance=1e-5)
def route(
    logits: Array,
    bias: Array | None,
    *,
    kind: str,
    top_k: int,
    groups: int,
    top_groups: int,
    normalize: int,
    scale: float,
) -> Array:
    """Gates [T, E], exactly 0 except for the `top_k` chosen experts of a row; ties go to the lowest index.

    `softmax` (Mixtral, Qwen 3): softmax over all experts, chosen by logit; with `normalize`, softmax over
    the chosen experts only, as in gpt-oss. `sigmoid` (DeepSeek-V3, arXiv:2412.19437): chosen by sigmoid +
    bias; with `groups` > 1, only from the `top_groups` groups whose two best scores have the largest sum;
    gates exclude the bias.
    `normalize`: the chosen gates of a row sum to 1. All gates are multiplied by `scale`.
    """
    with np.errstate(over="ignore"):  # 1 / inf = 0 is the correct limit
        sigmoid = np.float32(1) / (1 + np.exp(-logits))
    choice = sigmoid if kind == "sigmoid" else logits
    choice = choice if bias is None else choice + bias
    if groups > 1:
        choice = _within_best_groups(choice, groups, top_groups)
    chosen = _best(choice, top_k)
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    shares = sigmoid if kind == "sigmoid" else exponentials / exponentials.sum(-1, keepdims=True)
    gates = np.where(chosen, shares, np.float32(0))
    if normalize:
        gates = gates / (gates.sum(-1, keepdims=True) + np.float32(1e-20))
    return gates * np.float32(scale)


def _best(values: Array, count: int) -> NDArray[np.bool_]:
    """True for the `count` largest values of each row."""
    order = np.argsort(-values, axis=-1, kind="stable")
    best = np.zeros_like(values, dtype=np.bool_)
    np.put_along_axis(best, order[:, :count], True, axis=-1)
    return best


def _within_best_groups(choice: Array, groups: int, top_groups: int) -> Array:
    grouped = choice.reshape(len(choice), groups, -1)
    scores = np.sort(grouped, axis=-1)[..., -2:].sum(-1)
    inside = _best(scores, top_groups)[..., None]
    return np.where(inside, grouped, np.float32(-np.inf)).reshape(choice.shape)
