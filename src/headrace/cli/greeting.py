"""What `headrace serve` prints when it is ready: models, addresses, and a request to try."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.settings import Settings
from headrace.engine.client import LoadedModel
from headrace.weights.hub.bundled import list_bundled
from headrace.workers.model_entry import ModelEntry


def greeting(
    entries: Sequence[ModelEntry], settings: Settings, host: str, port: int, *, needs_key: bool
) -> list[str]:
    """The lines; the first entry is the model that is loaded."""
    model = entries[0].model
    assert model is not None
    address = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{address}:{port}"
    lines = [f"serving {model.name} ({model.context_length:,} tokens of context) on {url}"]
    others = [entry.name for entry in entries[1:]]
    if others:
        lines.append(f"  loaded when first used: {', '.join(others)}")
    if settings.load_on_demand:
        lines.append("  and every other model of `headrace list`, when a request names it")
    page = "" if settings.disable_page else f"in a browser: {url}, "
    return [
        *lines,
        f"  base URL for OpenAI's clients: {url}/v1",
        f"  for Anthropic's and Ollama's: {url}",
        f"  {page}all endpoints: {url}/docs",
        f"try: {_request(model, url, needs_key=needs_key)}",
    ]


def _request(model: LoadedModel, url: str, *, needs_key: bool) -> str:
    key = " -H 'authorization: Bearer KEY'" if needs_key else ""
    if "entities" in model.tasks:
        path, body = "entities", '{"input": "My name is John Miller", "labels": ["person", "location"]}'
    elif model.engine.limits.embedding_size:
        path, body = "embeddings", '{"input": "extract a gzipped tar archive"}'
    elif model.template is not None:
        content = "extract a gzipped tar archive" if model.name in list_bundled() else "Hello"
        path, body = "chat/completions", f'{{"messages": [{{"role": "user", "content": "{content}"}}]}}'
    else:
        path, body = "completions", '{"prompt": "It was a dark and stormy night", "max_tokens": 60}'
    return f"curl {url}/v1/{path}{key} -H 'content-type: application/json' -d '{body}'"
