"""A real model behind a real server, for the frameworks that are installed: `make test-frameworks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from in_process import Running, running_server

from headrace.chat.template import ChatTemplate
from headrace.engine.load import load_model
from headrace.engine.options import EngineOptions

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
    model = load_model("novelette", EngineOptions(max_sequences=4, token_budget=128))
    with running_server(dataclasses.replace(model, template=ChatTemplate(TEMPLATE))) as running:
        yield running
    model.close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
