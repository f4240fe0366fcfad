"""What a model itself writes: the text to measure on where none is given, and greedy continuations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from headrace.bench.batch_run import run_together
from headrace.bench.quality.windows import Windows, opening_tokens, windows_of_text, windows_of_tokens
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.errors import UsageError
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams

PROMPT_TOKENS = 32
"""Of a window, before a greedy continuation."""
AT_ONCE = 16


class TextOrder(Struct, frozen=True, kw_only=True):
    """What to read: `windows` windows of `length` tokens, of the `text`; None: of what the reference writes,
    sampled at temperature 1 from `seed` on. Greedy continuations have `continued` tokens."""

    windows: int
    length: int
    continued: int
    text: str | None = None
    source: str = ""
    seed: int = 0


class OwnText(Struct, frozen=True):
    """Windows, and prompts with their greedy continuations: `continued` is None where nothing was long
    enough."""

    windows: Windows
    continued: Windows | None


def own_text(
    model: str | None,
    options: EngineOptions,
    order: TextOrder,
    show: Callable[[str], None] = lambda text: None,
) -> OwnText:
    """Windows by the reference. Raises the errors of loading, UsageError where there is too little text."""
    longest = max(order.length, PROMPT_TOKENS + order.continued)
    wanted = replace(options, max_model_len=longest, max_num_seqs=AT_ONCE, max_batch_tokens=512)
    with closing(_loaded(model, wanted)) as loaded:
        if order.text is None:
            show("the reference writes a text")
            windows = _written(loaded, order)
        else:
            windows = windows_of_text(
                *(loaded.tokenizer, order.text),
                length=order.length,
                most=order.windows,
                source=order.source,
            )
        show("the reference continues prompts")
        return OwnText(windows, _continued(loaded, windows, order.continued))


def _loaded(model: str | None, options: EngineOptions) -> LoadedModel:
    try:
        return load_model(model, options)
    except UsageError as error:
        if error.param != "max_model_len":
            raise
        raise UsageError(
            f"windows and greedy answers need {options.max_model_len:,} tokens: {error.message}; use a"
            " smaller --window or --greedy",
            param="window",
        ) from None


def _written(loaded: LoadedModel, order: TextOrder) -> Windows:
    """Texts that begin as the model's own do; after an end token the next text follows."""
    tokenizer = loaded.tokenizer
    opening = opening_tokens(tokenizer) or (min(tokenizer.eos_ids, default=0),)
    params = SamplingParams(
        temperature=1.0, seed=order.seed, max_tokens=order.length - len(opening), ignore_eos=True
    )
    requests = [
        EngineRequest(prompt=opening, params=replace(params, seed=order.seed + index), is_continuation=True)
        for index in range(order.windows)
    ]
    source = f"written by {loaded.name} (seed {order.seed})"
    return windows_of_tokens(_outputs(loaded, requests), length=order.length, first=0, source=source)


def _continued(loaded: LoadedModel, windows: Windows, tokens: int) -> Windows | None:
    """The first tokens of each window, and the most likely continuation."""
    if not tokens:
        return None
    start = min(PROMPT_TOKENS, windows.tokens.shape[1] // 2)
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    requests = [
        EngineRequest(prompt=tuple(row[:start].tolist()), params=params, is_continuation=True)
        for row in windows.tokens
    ]
    rows = _outputs(loaded, requests)
    return windows_of_tokens(rows, length=start + tokens, first=start - 1, source="greedy continuations")


def _outputs(loaded: LoadedModel, requests: Sequence[EngineRequest]) -> list[list[int]]:
    """Each prompt with what was generated."""
    rows = [list(request.prompt) for request in requests]
    for at in range(0, len(requests), AT_ONCE):
        for arrival in run_together(loaded.engine, requests[at : at + AT_ONCE]):
            rows[at + arrival.index] += arrival.tokens
    return rows
