"""Fail if the inner loop of an x86-64 leaf kernel spills a vector register to the stack.

    python scripts/check_spills.py [OBJECT ...]

Leaf kernels are the functions marked HEADRACE_LEAF or HEADRACE_TILE in native/kernels. Without arguments,
the objects of the newest build below build/ are checked. A spill is a stack slot that a vector register is
stored to anywhere in the function and that an innermost loop stores to or loads from. Stack memory that
never held a register, such as a struct filled by a callee, does not count. Spills by compilers other than
GCC are shown but are not failures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OBJECTS = "CMakeFiles/kernels_{isa}.dir/native/kernels/*.o"
BUILDS = ("avx2", "avx512", "amx")

_LEAF = re.compile(r"HEADRACE_(?:LEAF|TILE)\s+(?:static\s+)?void\s+(\w+)\(")
_FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t(\S+)\s*([^#]*)")
_JUMP_TO = re.compile(r"([0-9a-f]+)\b")
_VECTOR = re.compile(r"%[yz]mm\d+")
_STORES_TO_MEMORY = re.compile(r"\)(\{%k\d\})?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Leaves whose demangled names match may access the stack this often in loops, because of `why`."""

    leaves: str
    accesses: int
    why: str
    build: str = "avx512"  # and amx, which has as many registers


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    operation: str
    operands: str

    def __str__(self) -> str:
        return f"{self.address:x}: {self.operation} {self.operands}"


@dataclass(frozen=True, slots=True)
class Leaf:
    build: str
    name: str
    loops: int
    spills: tuple[Instruction, ...]


# Counts are for GCC 12.2. The tiles of int8, bf16, f16 and f32 do not spill, nor do those of int4 for
# AVX-512, nor those of grouped weights there from 11 rows on.
ALLOWANCES = (
    Allowance(
        leaves=r"multiply_groups<Planes<4, 0, true>, true,",
        accesses=2,
        why="the table of values is live across the call of scales_of_group, once per 32 inputs",
    ),
    Allowance(
        leaves=r"multiply_groups<Planes<[24], [12], false>, true,",
        accesses=4,
        why="masks of the planes of codes, no sums: they cross the same call, and do not all fit next to the "
        "20 sums of 10 rows; 4 loads for 160 products at the most",
    ),
    Allowance(
        leaves=r"out_tile<float, \d, 1, false>",
        accesses=14,
        why="the sums cross load_partial's call of memcpy, once for a key: the last columns of a head whose "
        "size is no multiple of 16, with a float32 cache only",
    ),
    Allowance(
        build="avx2",
        leaves=r"tile_int4<Planes<4, 0, false>, [124]>",
        accesses=23,
        why="heads of two groups, which are built on the stack, and masks of nibbles, once for a group; "
        "fewer columns at a time spill less and are slower",
    ),
    Allowance(
        build="avx2",
        leaves=r"multiply_groups<Planes<\d, \d, \w+>, true, [1-4],",
        accesses=32,
        why="up to four rows that take codes out of their planes, once for a group: slower with fewer "
        "columns at a time, and up to a third slower when codes are unpacked into L1 first; more than 20 "
        "since the tile's fields are copies in registers, which made them a tenth faster",
    ),
    Allowance(
        build="avx2",
        leaves=r"multiply_groups<(ByteCodes<6>, false, 1|SignedBytes, false, [34]), true,",
        accesses=4,
        why="a constant and a vector of codes, once for 16 inputs",
    ),
    Allowance(
        build="avx2",
        leaves=r"(out|score)_tile<(float|unsigned short), \d, \d",
        accesses=17,
        why="attention's tiles need more registers than there are; the most where load_partial calls memcpy",
    ),
)


def main(arguments: Sequence[str]) -> int:
    objects = [Path(argument) for argument in arguments] or newest_objects()
    if not objects:
        print("spills are not checked: no x86-64 build found below build/")
        return 0
    if shutil.which("objdump") is None:
        print("spills are not checked: objdump not found (Debian: apt install binutils)")
        return 0
    names = leaf_names()
    leaves = [leaf for path in objects for leaf in read_leaves(disassembly(path), names, build_of(path))]
    bad = [leaf for leaf in leaves if len(leaf.spills) > allowed(leaf)]
    loops = sum(leaf.loops for leaf in leaves)
    for leaf in bad:
        print(f"{leaf.build}: {leaf.name}", *(f"    {instruction}" for instruction in leaf.spills), sep="\n")
    if not loops:
        print(f"no loop of a leaf kernel ({', '.join(sorted(names))}) found: nothing was checked")
        return 1
    excused = sum(bool(leaf.spills) for leaf in leaves) - len(bad)
    print(
        f"{len(leaves)} leaf kernels with {loops} inner loops: {len(bad)} spill, {excused} as far as allowed"
    )
    if bad and not all(b"GCC: (" in path.read_bytes() for path in objects):
        print("not a failure: the kernels are tuned for GCC, and these were built by another compiler")
        return 0
    return 1 if bad else 0


def newest_objects() -> list[Path]:
    """The kernel objects of the newest builds without sanitizers, whose checks spill."""
    caches = (ROOT / "build").glob("*/CMakeCache.txt")
    builds = [cache.parent for cache in caches if "\nHEADRACE_SANITIZE:STRING=\n" in cache.read_text()]
    found: list[Path] = []
    for isa in BUILDS:
        objects = sorted(
            (path for build in builds for path in build.glob(OBJECTS.format(isa=isa))),
            key=lambda path: path.stat().st_mtime,
        )
        found += [path for path in objects if path.parent == objects[-1].parent]
    return found


def build_of(path: Path) -> str:
    """The instruction set that an object is for: avx2, or avx512 if there are as many registers."""
    return "avx2" if "kernels_avx2.dir" in path.parts else "avx512"


def leaf_names() -> set[str]:
    """Names of the functions that the sources mark as leaves."""
    sources = [path.read_text() for path in (ROOT / "native" / "kernels").glob("*.?pp")]
    return {name for text in sources for name in _LEAF.findall(text)}


def disassembly(path: Path) -> str:
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_leaves(text: str, names: set[str], build: str) -> Iterator[Leaf]:
    """The leaves of a disassembly, with their spills."""
    for name, body in functions(text):
        found = re.search(r"(\w+)[<(]", name)
        if found and found[1] in names:
            loops = inner_loops(body)
            yield Leaf(build, name, len(loops), tuple(spills(body, loops)))


def functions(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Demangled names without namespaces, and function bodies."""
    name, body = "", list[Instruction]()
    for line in text.splitlines():
        if begins := _FUNCTION.fullmatch(line):
            yield name, body
            name, body = re.sub(r"\(anonymous namespace\)::|\bheadrace::", "", begins[1]), []
        elif found := _INSTRUCTION.match(line):
            body.append(Instruction(int(found[1], 16), found[2], found[3].strip()))
    yield name, body


def inner_loops(body: Sequence[Instruction]) -> list[tuple[int, int]]:
    """First and last address of each innermost loop, from the target of a backward jump to the jump.

    Loops without vector registers, such as pure prefetch loops, are ignored.
    """
    ends: dict[int, int] = {}
    for one in body:
        target = _JUMP_TO.match(one.operands) if one.operation.startswith("j") else None
        if target and body[0].address <= int(target[1], 16) <= one.address:
            ends[int(target[1], 16)] = one.address
    vectors = [one.address for one in body if _VECTOR.search(one.operands)]
    loops = [(a, b) for a, b in ends.items() if any(a <= address <= b for address in vectors)]
    return [
        (first, last)
        for first, last in loops
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in loops)
    ]


def spills(body: Sequence[Instruction], loops: Sequence[tuple[int, int]]) -> Iterator[Instruction]:
    """Instructions in the loops that store a vector register to the stack or load it back."""
    framed = any(one.operation == "mov" and one.operands == "%rsp,%rbp" for one in body)
    place = re.compile(r"(-?\w*)\((%rsp|%rbp)\)" if framed else r"(-?\w*)\((%rsp)\)")
    touching = [
        (one, at[0]) for one in body if _VECTOR.search(one.operands) and (at := place.search(one.operands))
    ]
    stored = {at for one, at in touching if _STORES_TO_MEMORY.search(one.operands)}
    for one, at in touching:
        if at in stored and any(first <= one.address <= last for first, last in loops):
            yield one


def allowed(leaf: Leaf) -> int:
    """Number of stack accesses that its loops are allowed."""
    fitting = (one for one in ALLOWANCES if one.build == leaf.build and re.search(one.leaves, leaf.name))
    return max((one.accesses for one in fitting), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
