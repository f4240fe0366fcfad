"""The test suites of OpenAI's and Anthropic's Python SDKs, against a running server.

Their cases were written for a mock server that answers any id and any value of the API description. Those
that name objects which only such a mock has (a file `file_id`, a stored batch) are not portable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from misses import SDK
from outcome import Outcome, read_junit
from served import serving
from sources import Workplace
from stand_ins import classifier

OPENAI = (
    "test_completions.py",
    "chat/test_completions.py",
    "test_embeddings.py",
    "test_models.py",
    "test_files.py",
    "test_batches.py",
    "test_responses.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
    "test_moderations.py",
)
ANTHROPIC = ("test_messages.py", "test_models.py", "messages/test_batches.py")


def openai_suite(workplace: Workplace, data: Path) -> Outcome:
    """Cases of the resources of OpenAI's API that Headrace has. A random classifier moderates."""
    judge = classifier(workplace.folder / "models", data, ("neutral", "toxic"))
    more = f"""
[models.judge]
path = {json.dumps(str(judge))}

[moderation]
model = "judge"
map = {{ toxic = "harassment" }}
"""
    return _run(workplace, "openai", OPENAI, {"TEST_API_BASE_URL": "{address}/v1"}, more)


def anthropic_suite(workplace: Workplace) -> Outcome:
    """Cases of the resources of Anthropic's API that Headrace has."""
    return _run(workplace, "anthropic", ANTHROPIC, {"TEST_API_BASE_URL": "{address}"})


def _run(
    workplace: Workplace, package: str, files: Sequence[str], variables: Mapping[str, str], more: str = ""
) -> Outcome:
    source, version = workplace.source(package)
    tests = source / "tests"
    paths = [tests / "api_resources" / name for name in files]
    there = [path for path in paths if path.exists()]
    embedding, chat = _models_of(there)
    chat |= _old_models(source / "src" / package / "_data" / "deprecated_models.py")
    models = {"mini": chat, "embed": embedding}
    with serving(workplace.folder / f"{package}-server", models, more) as address:
        environment = {name: value.format(address=address) for name, value in variables.items()}
        report = workplace.pytest(
            package, source,
            "-o", "addopts=", "-W", "ignore", *(str(path.relative_to(source)) for path in there),
            environment={**os.environ, **environment},
            timeout_s=1200,
        )  # fmt: skip
    about = f"api_resources/: {', '.join(name.removesuffix('.py') for name in files)}"
    return Outcome(f"{package} SDK", version, about, read_junit(report, SDK))


def _models_of(paths: Sequence[Path]) -> tuple[set[str], set[str]]:
    """Names of models in the suite's calls: those of embeddings, and all others."""
    found = {name for path in paths for name in re.findall(r'model(?:_id)?="([^"]+)"', path.read_text())}
    embedding = {name for name in found if "embedding" in name}
    return embedding, {name for name in found - embedding if re.fullmatch(r"[\w.:-]+", name)}


def _old_models(path: Path) -> set[str]:
    """The models that an SDK warns of, which its tests use: the keys of its table."""
    return set(re.findall(r'^    "([^"]+)":', path.read_text(), re.MULTILINE)) if path.exists() else set()
