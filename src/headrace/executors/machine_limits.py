"""Peak rates of this machine (read bandwidth, arithmetic), measured once and cached in a file."""

from __future__ import annotations

import hashlib
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from headrace import _native

_VERSION = 5  # version of the file; increment when the measured quantities change
_CPU_FACTS = Path("/proc/cpuinfo")


class Limits(Struct, frozen=True, kw_only=True):
    """Bytes and operations per second of `threads` threads; a multiply-add is two operations.
    `matrix_...` fields are for matrix units; 0 if there are none.
    """

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
        """The faster of vector and matrix units."""
        return max(self.bf16_per_s, self.matrix_bf16_per_s)

    @property
    def best_int8_per_s(self) -> float:
        """The faster of vector and matrix units."""
        return max(self.int8_per_s, self.matrix_int8_per_s)


def machine_limits(threads: int, cache: Path | None, *, measure: bool = False) -> Limits:
    """The limits for `threads` threads. They are read from the folder `cache` if they were measured on this
    processor before and `measure` is False; otherwise they are measured (half a second) and saved there,
    if `cache` is given.
    """
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
    """The processor's name as reported by the operating system."""
    if _CPU_FACTS.is_file():
        for line in _CPU_FACTS.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> Limits | None:
    """None for an invalid file, which is then measured again."""
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
        pass  # an unwritable folder only costs another measurement; `headrace doctor` reports it
