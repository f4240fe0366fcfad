"""What this machine can do at best: read bandwidth and arithmetic peaks, measured once and kept in a file."""

from __future__ import annotations

import hashlib
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from headrace import _native

_VERSION = 5  # of the file; raise it when what is measured changes
_CPU_FACTS = Path("/proc/cpuinfo")


class Limits(Struct, frozen=True, kw_only=True):
    """Bytes and operations (a multiplication and an addition are two) per second of `threads` threads.
    `matrix_...` are of matrix units: 0 where there are none."""

    cpu: str
    isa: str
    threads: int
    measured_at: str
    read_bytes_per_s: float
    f32_per_s: float
    bf16_per_s: float
    int8_per_s: float
    matrix_bf16_per_s: float = 0.0
    matrix_int8_per_s: float = 0.0

    @property
    def best_bf16_per_s(self) -> float:
        """On whichever units are faster."""
        return max(self.bf16_per_s, self.matrix_bf16_per_s)

    @property
    def best_int8_per_s(self) -> float:
        """On whichever units are faster."""
        return max(self.int8_per_s, self.matrix_int8_per_s)


def machine_limits(threads: int, cache: Path | None, *, measure: bool = False) -> Limits:
    """The limits with that many threads: from the folder `cache`, where they have been measured on this
    processor before, unless `measure`; else measured now (half a second) and kept there, if anywhere."""
    identity = {"version": _VERSION, "cpu": cpu_name(), "isa": _native.isa(), "threads": threads}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    path = None if cache is None else cache / f"limits-{digest}.json"
    kept = None if measure or path is None else _read(path)
    if kept is not None:
        return kept
    limits = _measure(threads)
    if path is not None:
        _keep(limits, path)
    return limits


def cpu_name() -> str:
    """The processor's name, as the operating system knows it."""
    if _CPU_FACTS.is_file():
        for line in _CPU_FACTS.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> Limits | None:
    """A file that is not as it was written is measured anew."""
    try:
        return Limits(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _measure(threads: int) -> Limits:
    pool = _native.Pool(threads)
    f32, bf16, int8, matrix_bf16, matrix_int8 = _native.compute_peaks(pool)
    return Limits(
        cpu=cpu_name(),
        isa=_native.isa(),
        threads=threads,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        read_bytes_per_s=_native.read_bandwidth(pool),
        f32_per_s=f32,
        bf16_per_s=bf16,
        int8_per_s=int8,
        matrix_bf16_per_s=matrix_bf16,
        matrix_int8_per_s=matrix_int8,
    )


def _keep(limits: Limits, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(limits), indent=2))
        temporary.replace(path)
    except OSError:
        pass  # a folder that cannot be written to costs another measurement; `headrace doctor` names it
