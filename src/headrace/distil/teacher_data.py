"""What a teacher finds likely at each token, kept in files by the content it belongs to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.distil.samples import Sample
from headrace.errors import StoreError, UsageError
from headrace.ops.value import Ints

VERSION = 1
TOP = 64
_LEAST = 1e-8


class TopK(Struct, frozen=True, eq=False):
    """For each of T learned tokens the `ids` [T, k] that the teacher finds likeliest with the natural
    logarithms of their probabilities, and that of all others together, `tail` [T]."""

    ids: NDArray[np.int32]
    logs: NDArray[np.float16]
    tail: NDArray[np.float16]


def top_of(logs: NDArray[np.float64], k: int) -> TopK:
    """Of rows of log probabilities [T, V]."""
    k = min(k, logs.shape[1] - 1)
    ids = np.argpartition(-logs, k, axis=1)[:, :k]
    best = np.take_along_axis(logs, ids, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    ids, best = np.take_along_axis(ids, order, axis=1), np.take_along_axis(best, order, axis=1)
    tail = np.log(np.maximum(1 - np.exp(best).sum(axis=1), _LEAST))
    return TopK(ids.astype(np.int32), best.astype(np.float16), tail.astype(np.float16))


def toward(top: TopK, said: Ints, share: float) -> TopK:
    """A part `share` of the probability for the tokens [T] that were said, the rest as the teacher has it:
    what was said may have been sampled, or held to a form."""
    ids = top.ids.copy()
    chances, tail = np.exp(top.logs.astype(np.float64)), np.exp(top.tail.astype(np.float64))
    missing = ~(ids == said[:, None]).any(axis=1)
    ids[missing, -1] = said[missing]
    tail[missing] += chances[missing, -1]
    chances[missing, -1] = 0.0
    chances = chances * (1 - share) + share * (ids == said[:, None])
    logs = np.log(np.maximum(chances, _LEAST)).astype(np.float16)
    return TopK(ids, logs, np.log(np.maximum(tail * (1 - share), _LEAST)).astype(np.float16))


def certain(said: Ints, vocabulary: int, k: int = TOP) -> TopK:
    """Tokens [T] that are right, whatever a teacher finds likely."""
    ids = (said[:, None] + np.arange(min(k, vocabulary - 1))) % vocabulary
    logs = np.full(ids.shape, np.log(_LEAST), np.float16)
    logs[:, 0] = 0.0
    return TopK(ids.astype(np.int32), logs, logs[:, -1].copy())


class TeacherData:
    """Computes what is not kept yet. `teacher` is a digest of the weights; the files do not depend on who
    learns from them, or in which order."""

    def __init__(
        self, folder: Path, teacher: str, compute: Callable[[Sample], TopK] | None, *, k: int = TOP
    ) -> None:
        self._folder, self._teacher, self._k = folder, teacher, k
        self._compute = compute
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, samples: Sequence[Sample]) -> list[TopK]:
        """One for each sample. StoreError where they cannot be written."""
        digest = hashlib.sha256(f"{VERSION} {self._teacher} {self._k} ".encode())
        for sample in samples:
            digest.update(sample.digest)
        file = self._folder / f"{digest.hexdigest()[:40]}.npz"
        found = self._read(file, samples)
        if found is None:
            if self._compute is None:
                raise UsageError(f"{self._folder} lacks what the teacher said: give the teacher again")
            found = [self._compute(sample) for sample in samples]
            self._write(file, found)
        return found

    def _read(self, file: Path, samples: Sequence[Sample]) -> list[TopK] | None:
        """None where there is no such file, or it is damaged: it is made again then."""
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                ids, logs, tail = (np.array(stored[name]) for name in ("ids", "logs", "tail"))
        except FileNotFoundError:
            return None
        except Exception:  # whatever zipfile and NumPy say of a damaged file
            return None
        ends = np.cumsum([sample.learned for sample in samples])
        if len(ids) != ends[-1] or ids.shape != logs.shape or tail.shape != (len(ids),):
            return None
        cuts = ends[:-1].tolist()
        parts = (np.split(one, cuts) for one in (ids.astype(np.int32), logs, tail))
        return [TopK(*one) for one in zip(*parts, strict=True)]

    def _write(self, file: Path, found: Sequence[TopK]) -> None:
        """Whole or not at all."""
        ids = np.concatenate([one.ids for one in found])
        small = ids.astype(np.uint16) if ids.max() < 1 << 16 else ids
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            with part.open("wb") as out:
                np.savez(
                    out,
                    ids=small,
                    logs=np.concatenate([one.logs for one in found]),
                    tail=np.concatenate([one.tail for one in found]),
                )
            part.replace(file)
        except OSError as error:
            raise StoreError(
                f"what the teacher said cannot be kept in {file.parent}: {error.strerror}; about 4 bytes for"
                f" each of {self._k} tokens at each position are needed: free some space, or give a smaller"
                " --top-k"
            ) from None
        finally:
            part.unlink(missing_ok=True)
