"""The prompt of `headrace run`: an argument, piped text, or both."""

from __future__ import annotations

import sys
import threading

from headrace.cli.terminal import note
from headrace.errors import UsageError

_PATIENCE_S = 2.0  # after which a person is told what the command waits for
MAX_CHARACTERS = 32 * 2**20


def whole_prompt(prompt: str | None) -> str | None:
    """`prompt` with the text that is piped in; None for a chat, where stdin is a terminal.

    Raises UsageError where there is neither.
    """
    if prompt not in (None, "-"):
        piped = "" if _is_terminal() else _read()
        return f"{prompt}\n\n{piped}" if piped.strip() else prompt
    if prompt is None and _is_terminal():
        return None
    piped = _read()
    if not piped:
        raise UsageError('there is no prompt and stdin is empty: give a PROMPT, or "" for none')
    return piped


def piped_text(remedy: str = "pipe a text in, or give a FILE") -> str:
    """What is piped in; UsageError with the remedy where that is nothing."""
    text = _read()
    if not text:
        raise UsageError(f"stdin is empty: {remedy}")
    return text


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def _read() -> str:
    """All of stdin; empty where it is closed."""
    if sys.stdin is None or sys.stdin.closed:  # pyright: ignore[reportUnnecessaryComparison]
        return ""
    waits = "reading stdin until its end (Ctrl-D on a terminal); < /dev/null is none"
    timer = threading.Timer(_PATIENCE_S, note, (waits,))
    timer.daemon = True
    timer.start()
    try:
        text = sys.stdin.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise UsageError(
                f"stdin has more than {MAX_CHARACTERS:,} characters, which no model reads: send a part of it"
            )
        return text
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text ({error.reason} at byte {error.start:,})") from None
    finally:
        timer.cancel()
