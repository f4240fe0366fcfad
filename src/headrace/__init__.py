"""Headrace runs language models on the machines people have, fast on a plain CPU.

from headrace import LLM
llm = LLM()
print(llm.generate("It was a dark and stormy night", max_tokens=60).text)
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing is not imported for this: Ctrl-C may come while it is
if TYPE_CHECKING:
    from headrace.agents import Agent
    from headrace.data.client import Data
    from headrace.errors import HeadraceError
    from headrace.inference.completion import Completion, CompletionChunk
    from headrace.llm import LLM, AsyncLLM
    from headrace.sampling.params import SamplingParams
    from headrace.tasks.pii.redaction import Redacted, redact, restore

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Agent",
    "AsyncLLM",
    "Completion",
    "CompletionChunk",
    "Data",
    "HeadraceError",
    "Redacted",
    "SamplingParams",
    "__version__",
    "redact",
    "restore",
]

_HOMES = {
    "Agent": "headrace.agents",
    "LLM": "headrace.llm",
    "AsyncLLM": "headrace.llm",
    "Completion": "headrace.inference.completion",
    "CompletionChunk": "headrace.inference.completion",
    "Data": "headrace.data.client",
    "HeadraceError": "headrace.errors",
    "SamplingParams": "headrace.sampling.params",
    "Redacted": "headrace.tasks.pii.redaction",
    "redact": "headrace.tasks.pii.redaction",
    "restore": "headrace.tasks.pii.redaction",
}


def __getattr__(name: str) -> object:
    # Loaded on first use, so that `import headrace` and `headrace --help` stay instant.
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
