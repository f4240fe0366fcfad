"""Peak rates of this machine (read bandwidth, arithmetic): the best of several probes, cached in a file."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from headrace import _native

_VERSION = 6  # version of the file; increment when the measured quantities change
_CPU_FACTS = Path("/proc/cpuinfo")
PROBES = 4  # at most; two that agree, on a machine that is otherwise idle, are enough
AGREEMENT = 0.9  # of the best probe's bandwidth: what another one must reach
LEAST_CPU_SHARE = 0.85  # of the time of all threads; with less, other programs had the cores
DISTURBED_FOR_S = 600.0  # limits that were measured on a busy machine are measured again after this time
DISTURBED = "these limits were measured while other programs used the machine: they may be higher"
_RATES = (
    "read_bytes_per_s",
    "f32_per_s",
    "bf16_per_s",
    "int8_per_s",
    "matrix_bf16_per_s",
    "matrix_int8_per_s",
)


class Limits(Struct, frozen=True, kw_only=True):
    """Bytes and operations per second of `threads` threads; a multiply-add is two operations.
    `matrix_...` fields are for matrix units; 0 if there are none. `disturbed`: other programs used the
    machine while this was measured, so that the limits may be higher.
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
    disturbed: bool = False

    @property
    def best_bf16_per_s(self) -> float:
        """The faster of vector and matrix units."""
        return max(self.bf16_per_s, self.matrix_bf16_per_s)

    @property
    def best_int8_per_s(self) -> float:
        """The faster of vector and matrix units."""
        return max(self.int8_per_s, self.matrix_int8_per_s)


def machine_limits(threads: int, cache: Path | None, *, measure: bool = False) -> Limits:
    """The limits for `threads` threads.

    With a folder `cache` they are read from a file there if they were measured on this processor before and
    `measure` is False; otherwise the best of several probes (a second) is saved there. What was measured on
    a busy machine is measured again after ten minutes, and no rate is lowered by that. Without `cache` it
    is one probe (half a second), of the machine as it is now.
    """
    if cache is None:
        return _probe(threads)[0]
    path = _file(threads, cache)
    kept = _read(path)
    if kept is not None and not measure and not _is_due(kept):
        return kept
    limits = _best_probe(threads)
    if kept is not None and (limits.disturbed or kept.disturbed):
        limits = _best_of(limits, kept)
    _keep(limits, path)
    return limits


def known_limits(threads: int, cache: Path) -> Limits | None:
    """The limits that were measured before, however long ago; None where they were not."""
    return _read(_file(threads, cache))


def raised(limits: Limits, read_bytes_per_s: float, cache: Path | None) -> Limits:
    """`limits`, or higher ones, also in `cache`, where a run has read more from memory than they allow."""
    if read_bytes_per_s <= limits.read_bytes_per_s:
        return limits
    limits = replace(limits, read_bytes_per_s=read_bytes_per_s)
    if cache is not None:
        _keep(limits, _file(limits.threads, cache))
    return limits


def cpu_name() -> str:
    """The processor's name as reported by the operating system."""
    if _CPU_FACTS.is_file():
        for line in _CPU_FACTS.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _file(threads: int, cache: Path) -> Path:
    identity = {"version": _VERSION, "cpu": cpu_name(), "isa": _native.isa(), "threads": threads}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return cache / f"limits-{digest}.json"


def _read(path: Path) -> Limits | None:
    """None for an invalid file, which is then measured again."""
    try:
        return Limits(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _is_due(limits: Limits) -> bool:
    """Whether limits of a busy machine are old enough to be measured again."""
    try:
        age_s = (datetime.now(UTC) - datetime.fromisoformat(limits.measured_at)).total_seconds()
    except (ValueError, TypeError):
        return True
    return limits.disturbed and not 0 <= age_s < DISTURBED_FOR_S


def _best_probe(threads: int) -> Limits:
    """Of each rate the best of several probes; `disturbed` unless two undisturbed ones agree."""
    best: Limits | None = None
    quiet: list[float] = []  # bandwidths of probes that had the cores to themselves
    for _ in range(PROBES):
        limits, cpu_share = _probe(threads)
        best = limits if best is None else _best_of(limits, best)
        if cpu_share >= LEAST_CPU_SHARE:
            quiet.append(limits.read_bytes_per_s)
        if sum(speed >= AGREEMENT * best.read_bytes_per_s for speed in quiet) >= 2:
            return replace(best, disturbed=False)
    assert best is not None
    return replace(best, disturbed=True)


def _best_of(new: Limits, old: Limits) -> Limits:
    """The new limits, with each rate at least as high as before."""
    return replace(new, **{name: max(getattr(new, name), getattr(old, name)) for name in _RATES})


def _probe(threads: int) -> tuple[Limits, float]:
    """One measurement, and the share of `threads` cores' time that this process got meanwhile."""
    pool = _native.Pool(threads)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    f32, bf16, int8, matrix_bf16, matrix_int8 = _native.compute_peaks(pool)
    bandwidth = _native.read_bandwidth(pool)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    limits = Limits(
        cpu=cpu_name(),
        isa=_native.isa(),
        threads=threads,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        read_bytes_per_s=bandwidth,
        f32_per_s=f32,
        bf16_per_s=bf16,
        int8_per_s=int8,
        matrix_bf16_per_s=matrix_bf16,
        matrix_int8_per_s=matrix_int8,
    )
    return limits, cpu_s / (wall_s * threads)


def _keep(limits: Limits, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(limits), indent=2))
        temporary.replace(path)
    except OSError:
        pass  # an unwritable folder only costs another measurement; `headrace doctor` reports it
