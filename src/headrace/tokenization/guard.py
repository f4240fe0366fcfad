"""Calls into the `tokenizers` package, whose failures are of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import CorruptFile, HeadraceError, InvalidRequest

_Result = TypeVar("_Result")


def guarded(
    work: Callable[[], _Result], error_type: type[CorruptFile] | type[InvalidRequest], message: str
) -> _Result:
    """Run a call into the library; its errors become ours, its Rust panics too (they are no Exception)."""
    try:
        return work()
    except HeadraceError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise error_type(f"{message} ({str(error)[:200]})") from error
        raise


def decoded(decode: Callable[[], str]) -> str:
    """Run a decoder. CorruptFile where it fails: it fails one request, and not the loop of all of them."""
    return guarded(
        decode, CorruptFile, "the decoder of the model's tokenizer.json fails: fetch the file again"
    )
