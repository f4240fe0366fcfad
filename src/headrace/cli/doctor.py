"""`headrace doctor`: checks of this machine and installation."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from headrace import __version__, _native
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.config.journal_settings import read_journal
from headrace.config.settings import Settings
from headrace.errors import HeadraceError
from headrace.executors.machine_limits import machine_limits
from headrace.journal.frames import read_cipher
from headrace.journal.reader import LogReader
from headrace.journal.segment import DAMAGED_SUFFIX
from headrace.loading.free_memory import free_memory_bytes
from headrace.loading.loader import usable_cores
from headrace.weights.hub.bundled import BUNDLED_DEFAULT, list_bundled
from headrace.weights.hub.resolver import list_local

HELP = """Check this machine: kernels, threads, memory and its speed, caches, models.

Problems are shown with remedies. Uses no network unless --online is given, which checks that the hub can be
reached. Exit code 1 if something is broken.

\b
Examples:
  headrace doctor
  headrace doctor --online --json
"""
LIBRARIES = ("numpy", "tokenizers", "huggingface-hub", "starlette", "msgspec", "uvicorn", "uvloop")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUB_S = 10.0
LOW_SPACE_BYTES = 2_000_000_000


class Finding(Struct, frozen=True):
    """One line of the report. `problem` is the cause and the remedy; `broken` makes the command fail."""

    name: str
    value: str
    problem: str | None = None
    broken: bool = False


@takes_settings("cache_dir", "threads", "journal")
def command(
    online: Annotated[bool, typer.Option("--online", help="Also try to reach the hub.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Check and report."""
    checks: list[Callable[[], list[Finding]]] = [
        _versions,
        lambda: _kernels(settings),
        _memory,
        lambda: _cache(settings),
        _models,
        lambda: _journal(settings),
    ]
    if online:
        checks.append(_hub)
    findings = [finding for check in checks for finding in check()]
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([(finding.name, finding.value) for finding in findings])
        for finding in findings:
            if finding.problem is not None:
                print(f"{'broken' if finding.broken else 'hint'}: {finding.name}: {finding.problem}")
    if any(finding.broken for finding in findings):
        raise typer.Exit(1)


def _versions() -> list[Finding]:
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    found = [Finding("headrace", __version__), Finding("python", python)]
    for library in LIBRARIES:
        try:
            found.append(Finding(library, version(library)))
        except PackageNotFoundError:
            needed = library != "uvloop"
            problem = f"install it: {sys.executable} -m pip install {library}"
            found.append(Finding(library, "missing", problem, broken=needed))
    return found


def _kernels(settings: Settings) -> list[Finding]:
    try:
        used = Finding("kernels", f"{_native.isa()} (usable: {', '.join(_native.usable_isas())})")
    except RuntimeError as error:
        return [Finding("kernels", "none", f"{error}: unset HEADRACE_ISA", broken=True)]
    if _native.isa() == "portable":
        slow = "this CPU offers no vector instructions that headrace knows, or HEADRACE_ISA hides them"
        used = Finding(used.name, used.value, slow)
    threads = settings.threads or usable_cores()
    return [used, Finding("threads", f"{threads} of {os.cpu_count()} cores"), _bandwidth(settings, threads)]


def _bandwidth(settings: Settings, threads: int) -> Finding:
    limits = machine_limits(threads, settings.cache_folder)
    problem = None
    if limits.disturbed:
        problem = "measured while other programs used the machine: it may be higher, and is measured again"
    return Finding("read bandwidth", f"{size(limits.read_bytes_per_s)}/s", problem)


def _memory() -> list[Finding]:
    findings = [Finding("free memory", size(free_memory_bytes()))]
    if HUGE_PAGES.exists():
        chosen = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
        problem = None
        if chosen == "never":
            problem = f"weights are read faster from huge pages: echo madvise | sudo tee {HUGE_PAGES}"
        findings.append(Finding("huge pages", chosen, problem))
    return findings


def _journal(settings: Settings) -> list[Finding]:
    """The journal's files, read without changing them."""
    found = read_journal(settings.journal)
    if found is None:
        return []
    if not found.folder.is_dir():
        return [Finding("journal", f"{found.folder} (not made yet)")]
    try:
        log = LogReader(found.folder, read_cipher(found.key_file))
    except HeadraceError as error:
        return [Finding("journal", str(found.folder), error.message, broken=True)]
    damages = [one.message for one in [*log.damages, *log.checked()]]
    aside = sorted(found.folder.glob(f"*{DAMAGED_SUFFIX}"))
    value = f"{found.folder} ({size(log.size_bytes)}, {len(log.unfinished())} unfinished requests)"
    problem = None
    if damages or aside:
        names = ", ".join(path.name for path in aside)
        said = "; ".join([*damages, *([f"damaged parts were set aside as {names}"] if aside else [])])
        problem = f"{said}: what was before the damage is used; look after the disk, then delete those parts"
    return [Finding("journal", value, problem)]


def _cache(settings: Settings) -> list[Finding]:
    folder = settings.cache_folder
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    used = size(sum(path.stat().st_size for path in files))
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    place = os.statvfs(existing)
    free = place.f_bavail * place.f_frsize
    value = f"{folder}, {used} used, {size(free)} free"
    if not os.access(existing, os.W_OK):
        problem = "not writable, so weights are packed again at each start: set --cache-dir"
        return [Finding("cache", value, problem)]
    if free < LOW_SPACE_BYTES:
        return [Finding("cache", value, "little space is left for packed weights: free some")]
    return [Finding("cache", value)]


def _models() -> list[Finding]:
    names = [model.name for model in list_local()]
    here = Finding("models", ", ".join(names) or "none")
    if BUNDLED_DEFAULT in list_bundled():
        return [here]
    problem = f"the model {BUNDLED_DEFAULT} that ships with headrace is missing: reinstall headrace"
    return [Finding(here.name, here.value, problem, broken=True)]


def _hub() -> list[Finding]:
    from huggingface_hub import HfApi, get_session

    api = HfApi()
    try:  # once: the library's own calls try again for half a minute, and log each failure
        get_session().get(f"{api.endpoint}/api/models?limit=1", timeout=HUB_S).raise_for_status()
    except Exception as error:  # the HTTP library's own errors, which differ between its versions
        problem = f"{type(error).__name__}: check the connection, or set HF_ENDPOINT to a mirror"
        return [Finding("hub", f"{api.endpoint} is unreachable", problem, broken=True)]
    return [Finding("hub", f"{api.endpoint} is reachable")]
