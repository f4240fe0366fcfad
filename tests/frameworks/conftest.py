"""A real model behind a real server, for the frameworks that are installed: `make test-frameworks`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from in_process import Running, server_of, shipped_model_server

from encoder_models import load_encoders

# As Qwen's: tools in the prompt, calls as JSON between marks.
TEMPLATE = (
    "{% for t in tools or [] %}<tools>{{ t | tojson }}</tools>\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    '{% if false %}<tool_call>\n{"name": x, "arguments": {}}\n</tool_call>{% endif %}'
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server of the shipped model, whose grammars hold it to whatever a framework asks for."""
    with shipped_model_server(TEMPLATE, max_num_seqs=4, max_batch_tokens=128) as running:
        yield running


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of tiny encoders, one for each task; the first is the default model."""
    names = ("embedder", "reranker", "classifier", "nli", "tokens", "states")
    with ExitStack() as held:
        models = load_encoders(tmp_path_factory.mktemp("encoders"), held, *names)
        yield held.enter_context(server_of(*models))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
