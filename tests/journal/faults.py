"""Faults of the machine below a server: a clock that jumps, a full disk, a power cut."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")


def library(folder: Path) -> Path | None:
    """`faults.c` as a shared library; None where there is no C compiler."""
    compiler, made = shutil.which("cc"), folder / "faults.so"
    if compiler is None:
        return None
    words = [compiler, "-O2", "-fPIC", "-shared", "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(words, check=True)
    return made


class JumpingClock:
    """The wall clock of servers that have `environment`."""

    def __init__(self, file: Path, shim: Path) -> None:
        self._file = file
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(shim), "FAULTS_CLOCK": str(file)}
        file.write_bytes(bytes(8))

    def jump_to(self, seconds: int) -> None:
        """Let it be that many seconds off."""
        with self._file.open("r+b") as file:  # in place: servers have it mapped
            file.write(struct.pack("<q", seconds))


class Disk:
    """A folder whose files lose what was not synced when the power is cut, for servers that have
    `environment`."""

    def __init__(self, folder: Path, memory: Path, shim: Path) -> None:
        self.folder, self._memory = folder.resolve(), memory
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(shim),
            "FAULTS_FOLDER": str(self.folder),
            "FAULTS_DURABLE": str(memory),
        }

    def settle(self) -> None:
        """All that is there now is on the disk."""
        shutil.rmtree(self._memory, ignore_errors=True)
        for name in ("inodes", "folders"):
            (self._memory / name).mkdir(parents=True)
        for path in (self.folder, *(one for one in self.folder.rglob("*") if one.is_dir())):
            files = [one for one in path.iterdir() if one.is_file()]
            names = [f"{one.stat().st_ino} {one.name}\n" for one in files]
            (self._memory / "folders" / str(path.stat().st_ino)).write_text(f"{path}\n" + "".join(names))
            for one in files:
                shutil.copyfile(one, self._memory / "inodes" / str(one.stat().st_ino))

    def cut_power(self, draw: random.Random) -> int:
        """No server runs any more. What was not synced is gone: all of it, a part, or there are zeros in its
        place. How many bytes were lost."""
        lost = 0
        for listing in (self._memory / "folders").iterdir():
            if listing.suffix:
                continue
            where, *names = listing.read_text().splitlines()
            known = {name: inode for inode, _, name in (line.partition(" ") for line in names)}
            found = {name: self._survives(Path(where) / name, inode, draw) for name, inode in known.items()}
            for path in [one for one in Path(where).iterdir() if one.is_file()]:
                lost += max(0, path.stat().st_size - len(found.get(path.name, b"")))
                path.unlink()
            for name, data in found.items():
                (Path(where) / name).write_bytes(data)
        self.settle()
        return lost

    def _survives(self, path: Path, inode: str, draw: random.Random) -> bytes:
        synced = self._memory / "inodes" / inode
        kept = synced.read_bytes() if synced.is_file() else b""
        if path.suffix != ".log" or not path.is_file() or path.stat().st_ino != int(inode):
            return kept
        more = path.read_bytes()[len(kept) :]  # a disk may have written more than it was told to
        part = more[: draw.randrange(len(more) + 1)]
        return kept + draw.choice((b"", part, bytes(len(part))))


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Generator[bool]:
    """A file system of that size in memory at `folder`; False where this process must not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "none", str(folder)]
    try:
        mounted = subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Generator[None]:
    """No byte more may be written to the file system of `folder`."""
    filler = folder / "filler"
    file = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        for part in (2**16, 2**12, 1):
            try:
                while True:
                    os.write(file, bytes(part))
            except OSError:
                continue
        yield
    finally:
        os.close(file)
        filler.unlink()
