"""MkDocs hook: makes the reference pages from the package's tables while the site is built; none is
stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cli_page
import decisions_page
import errors_page
import http_page
import metrics_page
import models_page
import sampling_page
import settings_page
import tree_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/settings.md": settings_page.page,
    "reference/cli.md": cli_page.page,
    "reference/http.md": http_page.page,
    "reference/sampling.md": sampling_page.page,
    "reference/metrics.md": metrics_page.page,
    "reference/errors.md": errors_page.page,
    "reference/models.md": models_page.page,
    "contributing/tree.md": tree_page.page,
    "decisions/index.md": decisions_page.page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that lie in docs/."""
    for uri, page in PAGES.items():
        files.append(File.generated(config, uri, content=page()))
    return files
