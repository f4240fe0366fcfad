"""The bounds of input and output, and the limit that a budget gives a request."""

from __future__ import annotations

from typing import Any

import pytest
from asking import chat

from headrace.chat.messages import Image, Message
from headrace.inference.requests import ChatRequest, CompletionRequest, ReasoningSettings
from headrace.providers.bounds import input_bound, limited, output_bound, plausible
from headrace.providers.target import RemoteTarget, read_providers


def target(model: str, kind: str, **more: Any) -> RemoteTarget:
    table = {"work": {"kind": kind, "base_url": "http://127.0.0.1:1/v1"}}
    return RemoteTarget(name="far", provider=read_providers(table)["work"], model=model, **more)


@pytest.mark.parametrize(
    ("model", "kind", "sampling", "most"),
    [
        ("gpt-5-mini", "openai", {}, 32_768),
        ("gpt-5-mini", "openai", {"max_tokens": 200_000}, 128_000),
        ("gpt-4o-2024-08-06", "openai", {}, 16_384),
        ("openai/gpt-4o", "openrouter", {}, 4_096),
        ("claude-3-haiku-20240307", "anthropic", {"max_tokens": 9_000}, 4_096),
        ("claude-sonnet-4-5", "anthropic", {"max_tokens": 9_000}, 9_000),
        ("gemini-2.5-pro", "google", {"max_tokens": 100, "n": 2}, 2 * (100 + 32_768)),
        ("gemini-2.0-flash", "google", {"max_tokens": 100}, 100),
        ("grok-4", "xai", {"max_tokens": 100}, 100 + 131_072),
        ("grok-4-fast-non-reasoning", "xai", {"max_tokens": 100}, 100),
        ("any", "vllm", {}, 4_096),
        ("any", "headrace", {"max_tokens": 10, "n": 2, "best_of": 6}, 60),
    ],
)
def test_output_is_bounded_by_the_model_and_the_request(
    model: str, kind: str, sampling: dict[str, Any], most: int
) -> None:
    assert output_bound(chat(sampling=sampling), target(model, kind)).most == most


def test_every_prompt_of_a_completion_has_its_choices() -> None:
    request = CompletionRequest(id="r", prompts=("a", "b", "c"), sampling={"max_tokens": 7, "n": 2})
    assert output_bound(request, target("any", "vllm")).most == 42


def test_input_is_bounded_by_bytes_and_images_by_the_row() -> None:
    remote = target("claude-sonnet-4-5", "anthropic")
    plain = input_bound(chat(), b"x" * 100, remote)
    data = "A" * 4_000
    image = Message("user", "hi", images=(Image(f"data:image/png;base64,{data}"),))
    assert input_bound(chat(image), b"x" * 100 + data.encode(), remote) == plain + remote.row.image_tokens
    # Tokenizers that write characters out before they cut make more tokens than bytes of this one.
    assert input_bound(chat(), "\ufdfa".encode(), remote) >= plain - 100 + 33


def test_less_than_anthropics_reasoning_lowers_it_or_switches_it_off() -> None:
    remote = target("claude-sonnet-4-5", "anthropic")
    request = chat(sampling={"max_tokens": 9_000}, reasoning=ReasoningSettings(max_tokens=8_000))
    bound = output_bound(request, remote)
    found = limited(request, remote, bound, 4_000)
    assert isinstance(found.request, ChatRequest)
    assert (found.request.reasoning.max_tokens, found.request.sampling["max_tokens"]) == (2_000, 4_000)
    found = limited(request, remote, bound, 2_000)
    assert isinstance(found.request, ChatRequest)
    assert found.request.reasoning == ReasoningSettings(enabled=False)
    assert set(found.warnings) == {"max_tokens", "reasoning"}


def test_a_prediction_is_left_out_where_output_is_bounded() -> None:
    remote = target("gpt-4o", "openai")
    request = chat(prediction="long ago", sampling={"max_tokens": 100})
    found = limited(request, remote, output_bound(request, remote), 100)
    assert (
        isinstance(found.request, ChatRequest)
        and found.request.prediction is None
        and set(found.warnings) == {"prediction"}
    )


def test_more_output_than_bytes_is_plausible_only_where_reasoning_is_hidden() -> None:
    shown, hidden = target("any", "vllm"), target("gpt-5", "openai")
    assert plausible(chat(), shown, b"x", 500).output == 500
    assert plausible(chat(), hidden, b"x", 500).output == 128_500
    assert plausible(chat(sampling={"max_tokens": 60}), hidden, b"x", 500).output == 60
