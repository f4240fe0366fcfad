"""The documentation is complete and true: generated pages, names of flags and files, the form of records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cli_page
import decisions_page
import errors_page
import http_page
import metrics_page
import models_page
import pytest
import sampling_page
import settings_page
import tree_page
from test_snippets import PAGES, ROOT

from headrace.config.settings import SETTINGS
from headrace.config.sources import OTHER_VARIABLES
from headrace.models.registry import known_model_types
from headrace.sampling.params import SamplingParams
from headrace.weights.hub.bundled import list_bundled

PROSE = [*PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
# Words of the texts of this project that a newcomer stumbles over.
WORDS = ("door", "desk", "panel", "books", "ballot", "inbox", "at work", "in vain", "whoever", "lest")


def test_every_setting_is_documented_once() -> None:
    page = settings_page.page()
    for setting in SETTINGS.values():
        assert page.count(f"`{setting.flag}`<br>") == 1, setting.name
        assert f"`{setting.variable}`" in page
        assert setting.help[1:] in page.replace("\\|", "|")


def test_every_command_and_endpoint_is_documented() -> None:
    cli = cli_page.page()
    for command in ("run", "serve", "keys", "quantize", "bench serve", "doctor"):
        assert f"`headrace {command}`" in cli
    http = http_page.page()
    paths = http_page.openapi()["paths"]
    assert len(paths) > 30
    for path, operations in paths.items():
        for method in operations:
            assert http.count(f"### {method.upper()} `{path}`\n") == 1, path


def test_every_error_has_a_cause_and_a_remedy_of_its_own() -> None:
    kinds = errors_page.error_types()
    assert len(kinds) > 20
    for kind in kinds:
        assert kind.__doc__, kind
        if kind.__module__ == "headrace.errors" or kind.__module__.endswith("http.errors"):
            assert "remedy" in vars(kind), f"{kind.__name__} says no remedy"
        assert kind.remedy[0].isupper() and kind.remedy.endswith("."), kind
    page = errors_page.page()
    for code in ("unknown_parameter", "context_length_exceeded", "insufficient_memory", "invalid_api_key"):
        assert f"`{code}`" in page


def test_every_metric_and_parameter_and_model_is_documented() -> None:
    metrics = metrics_page.page()
    for name in ("headrace_time_to_first_token_seconds", "vllm:num_requests_running", "headrace_steps_total"):
        assert f"`{name}`" in metrics
    sampling = sampling_page.page()
    for name in SamplingParams.__struct_fields__:
        assert f"| `{name}` |" in sampling
    models = models_page.page()
    for name in (*known_model_types(), *list_bundled()):
        assert f"| `{name}` |" in models


def test_metrics_that_pages_name_exist() -> None:
    known = set(re.findall(r"`((?:headrace_|vllm:)\w+)`", metrics_page.page()))
    known |= {f"{name}_bucket" for name in known}
    for page in PAGES:
        for name in re.findall(
            r"\b(headrace_\w+_(?:total|seconds\w*|running|waiting|ratio|state))\b", page.read_text()
        ):
            assert name in known, f"{page.relative_to(ROOT)}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_variables_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    flags = set(re.findall(r"--[a-z][a-z-]+", cli_page.page()))
    for inline in re.findall(r"`([^`\n]+)`", text):
        ours = inline.startswith(("--", "headrace "))
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", inline) if ours else ():
            assert flag in flags, f"{flag} is no flag"
        path = inline.split()[0].rstrip("/")
        if re.fullmatch(r"(?:[a-z_]+/)+[\w.-]+", path) and "." in path:
            roots = (ROOT, ROOT / "src" / "headrace", ROOT / "src" / "headrace" / "weights", ROOT / "docs")
            assert any((root / path).exists() for root in roots), f"there is no {path}"
    variables = {setting.variable for setting in SETTINGS.values()} | OTHER_VARIABLES.keys()
    for variable in re.findall(r"\bHEADRACE_[A-Z_]+\b", text):
        assert variable in variables, f"{variable} is no variable"


def test_decisions_have_the_same_form() -> None:
    records = decisions_page.records()
    numbers = [path.name[:4] for path in records]  # not all in a row: branches take theirs before they land
    assert len(set(numbers)) == len(numbers) and numbers == sorted(numbers)
    for path in records:
        text = path.read_text()
        assert len(text.splitlines()) <= 60, path.name
        assert text.startswith(f"# {path.name[:4]}. "), path.name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d.*", decisions_page.field(text, "Date"))
        assert decisions_page.field(text, "Status").startswith(("accepted", "superseded"))
        assert "\n## Context\n" in text and "\n## Decision\n" in text, path.name
    assert all(f"]({path.name})" in decisions_page.page() for path in records)


def test_the_words_are_the_fields() -> None:
    for page in PROSE:
        found = re.search(rf"\b({'|'.join(WORDS)})\b", page.read_text(), re.IGNORECASE)
        assert found is None, f"{page.relative_to(ROOT)}: {found and found.group()}"


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 250
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_the_chart_is_that_of_the_results() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_chart.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout


def test_the_source_tree_has_every_file() -> None:
    page = tree_page.page()
    assert "scheduler/scheduler.py" in page and "## weights/" in page
    package = ROOT / "src" / "headrace"
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    assert all(path.name in page for path in files)
