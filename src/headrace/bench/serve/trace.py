"""Traces of production servers: arrival times, lengths, and shared prefixes of requests."""

from __future__ import annotations

import io
import itertools
import json
import lzma
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import UsageError

BLOCK_TOKENS = 512  # per hash id of Mooncake
MAX_BYTES = 2**30
"""Of a trace, unpacked."""
MAX_REQUESTS = 10_000_000
_PART_BYTES = 1 << 20
MAX_TOKENS, MAX_S = 10**8, 3660 * 86_400
"""Of a request, and between the first and the last."""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FORMATS = (
    f"known are Azure's CSV ({','.join(AZURE_COLUMNS)}) and Mooncake's JSON lines "
    "(timestamp in ms, input_length, output_length, hash_ids), plain or as .xz"
)


class TraceRequest(Struct, frozen=True):
    """One request of a trace. `blocks` are ids of the prompt's blocks of `BLOCK_TOKENS` tokens (the last
    may be shorter); equal ids mean equal text.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a trace, with the first at time 0. Raises UsageError with line and cause.

    Azure: https://github.com/Azure/AzurePublicDataset (Patel et al., Splitwise, 2024). Mooncake:
    https://github.com/kvcache-ai/Mooncake (Qin et al., FAST 2025).
    """
    found: list[TraceRequest] = []
    # Line by line: a gigabyte of line ends packs into nothing, and as a list of lines it fills the memory.
    lines = enumerate(io.TextIOWrapper(io.BytesIO(_unpacked(path)), "utf-8"), start=1)
    try:
        first = next(lines, (1, ""))
        parse, is_header = _format(path, first[1])
        for number, line in lines if is_header else itertools.chain([first], lines):
            if line.strip():
                found.append(_request(parse, path, number, line, found))
    except UnicodeDecodeError as error:
        raise UsageError(f"--trace {path} cannot be read: {error}", param="trace") from None
    if not found:
        raise UsageError(f"--trace {path} has no requests", param="trace")
    return [replace(one, at_s=one.at_s - found[0].at_s) for one in found]


def _unpacked(path: Path) -> bytes:
    content = bytearray()
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            while part := file.read(_PART_BYTES):  # all at once takes the memory of the most
                content += part
                if len(content) > MAX_BYTES:
                    raise UsageError(f"--trace {path} has more than {MAX_BYTES:,} bytes", param="trace")
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UsageError(f"--trace {path} cannot be read: {error}", param="trace") from None
    return bytes(content)


def _request(
    parse: Callable[[str], TraceRequest], path: Path, number: int, line: str, before: Sequence[TraceRequest]
) -> TraceRequest:
    if len(before) == MAX_REQUESTS:
        raise UsageError(f"--trace {path} has more than {MAX_REQUESTS:,} requests", param="trace")
    try:
        request = parse(line)
        _check(request, before)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        message = f"--trace {path}, line {number}: {error!r} in {line.strip()[:120]!r}; {FORMATS}"
        raise UsageError(message, param="trace") from None
    return request


def _format(path: Path, first: str) -> tuple[Callable[[str], TraceRequest], bool]:
    """The parser of a line, and whether the first one is a header."""
    head = first.strip()
    if tuple(head.split(",")) == AZURE_COLUMNS:
        return _azure, True
    if head.startswith("{"):
        return _mooncake, False
    raise UsageError(f"--trace {path} begins with {head[:80]!r}: {FORMATS}", param="trace")


def _azure(line: str) -> TraceRequest:
    at, prompt, output = line.split(",")
    when = datetime.fromisoformat(at).replace(
        tzinfo=UTC
    )  # the trace's time zone is irrelevant, but DST jumps of a local zone would matter
    return TraceRequest(when.timestamp(), int(prompt), int(output))


def _mooncake(line: str) -> TraceRequest:
    found: object = json.loads(line)
    if not isinstance(found, dict):
        raise TypeError("no JSON object")
    row = cast("dict[str, Any]", found)
    blocks: Sequence[int] = row.get("hash_ids", ())
    return TraceRequest(
        float(row["timestamp"]) / 1000,
        int(row["input_length"]),
        int(row["output_length"]),
        tuple(int(block) for block in blocks),
    )


def _check(request: TraceRequest, before: Sequence[TraceRequest]) -> None:
    if not (1 <= request.prompt_tokens <= MAX_TOKENS and 1 <= request.output_tokens <= MAX_TOKENS):
        raise ValueError(f"token counts must be at least 1 and at most {MAX_TOKENS:,}")
    if not math.isfinite(request.at_s) or (before and request.at_s - before[0].at_s > MAX_S):
        raise ValueError(f"the time must be within {MAX_S // 86_400:,} days of that of the first request")
    if before and request.at_s < before[-1].at_s:
        raise ValueError("the time is before that of the previous request")
    if request.blocks and len(request.blocks) != -(-request.prompt_tokens // BLOCK_TOKENS):
        raise ValueError(f"{len(request.blocks)} hash ids for {request.prompt_tokens} tokens")
