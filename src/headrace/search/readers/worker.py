"""The process of readers: `python -m headrace.search.readers.worker`. Each document is read in a fork."""

from __future__ import annotations

import importlib
import logging
import signal
from contextlib import suppress

from headrace.isolation.fork_server import Ask, Work, serve
from headrace.search.readers.kinds import reader_of
from headrace.search.readers.reading import MAX_CHARACTERS, DocumentText, Unreadable, decode_job, encode

CLOCK_S = 120.0
"""Time on the clock, for what sleeps or waits; CPU time is limited besides."""


def prepare(setup: bytes) -> Work:
    """Load the libraries that `setup` names, which every fork then has."""
    logging.disable(logging.CRITICAL)
    for library in setup.decode().split():
        with suppress(Exception):  # it is loaded again where it is used, and then its error is told
            importlib.import_module(library)
    return _read


def _read(payload: bytes, ask: Ask) -> bytes:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_S)
    job = decode_job(payload)
    return encode(_text(job.kind, job.data))


def _text(kind: str, data: bytes) -> DocumentText:
    try:
        found = reader_of(kind).read(data)
    except Unreadable as error:
        return DocumentText("", failure=str(error))
    except (MemoryError, KeyboardInterrupt):
        raise
    except RecursionError:
        return DocumentText("", failure="it is nested too deep")
    except Exception as error:
        return DocumentText("", failure=f"it is damaged ({type(error).__name__}: {str(error)[:200]})")
    if len(found.text) > MAX_CHARACTERS:
        return DocumentText("", failure=f"it has more than {MAX_CHARACTERS:,} characters: split it")
    if not found.text.strip():
        return DocumentText("", failure="it is empty")
    # Lone surrogates are no text for any tokenizer.
    return DocumentText(found.text.encode("utf-8", "replace").decode(), found.title[:500], found.pages)


if __name__ == "__main__":
    serve(prepare)
