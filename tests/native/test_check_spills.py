"""The check for spills in leaf kernels finds spills, and nothing else."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_spills.py"
# The asm leaves no vector register for the sum.
ALL_REGISTERS = ", ".join(f'"xmm{number}"' for number in range(32))
SOURCE = f"""
typedef int V __attribute__((vector_size(64)));
struct Scales {{ V low, high; }};
void fill(Scales& scales);
void tile_int8(const V* w, long steps, V* out) {{
  V sum = out[0];
  for (long s = 0; s < steps; ++s) {{
    sum += w[s];
    if (SPILLS) asm volatile("" ::: {ALL_REGISTERS});
  }}
  out[0] = sum;
}}
void tile_group(const V* w, long groups, V* out) {{
  Scales scales;
  for (long g = 0; g < groups; ++g) {{
    fill(scales);
    out[g] = scales.low * w[g] + scales.high;
  }}
}}
"""
# Two nested loops; a sum is stored in `{outer}` and loaded in `{inner}`.
LISTING = """
0000000000000000 <void headrace::(anonymous namespace)::{name}<2>(unsigned char const*)>:
   0:	push   %rbp
   1:	vmovaps %zmm1,0x40(%rsp)
  10:	{outer}
  20:	vmovdqu64 (%rdi),%zmm3
  28:	{inner}
  30:	vpdpbusd %zmm3,%zmm2,%zmm1        # 40 <x+0x10>
  38:	cmp    %rax,%rdx
  40:	jne    20 <void headrace::(anonymous namespace)::{name}<2>(unsigned char const*)+0x20>
  48:	dec    %rcx
  50:	jne    10 <void headrace::(anonymous namespace)::{name}<2>(unsigned char const*)+0x10>
  58:	ret
"""
NOTHING = "nop"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_spills", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_spills"] = module  # where dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("inner", "found"),
    [
        ("vmovaps 0x40(%rsp),%zmm1", True),
        ("vmovaps %zmm1,0x40(%rsp)", True),
        ("vmovdqu64 %zmm1,0x40(%rsp){%k1}", True),
        ("vaddps 0x40(%rsp),%zmm2,%zmm1", True),
        ("vmovaps 0x80(%rsp),%zmm1", False),  # never a register
        ("vmovaps 0x40(%rsi),%zmm1", False),
        ("mov    0x40(%rsp),%rax", False),
        ("vmovaps 0x40(%rbp),%zmm1", False),  # rbp is not a frame pointer here
    ],
)
def test_which_instructions_are_spills(check: ModuleType, inner: str, found: bool) -> None:
    text = LISTING.format(name="tile_int8", outer=NOTHING, inner=inner)
    [leaf] = check.read_leaves(text, {"tile_int8"}, "avx512")
    assert leaf.name == "void tile_int8<2>(unsigned char const*)" and leaf.loops == 1
    assert [str(one) for one in leaf.spills] == ([f"28: {inner}"] if found else [])


def test_only_inner_loops_of_leaves_count(check: ModuleType) -> None:
    text = LISTING.format(name="tile_int8", outer="vmovaps 0x40(%rsp),%zmm1", inner=NOTHING)
    [leaf] = check.read_leaves(text, {"tile_int8"}, "avx512")
    assert leaf.spills == ()
    assert not list(check.read_leaves(text, {"tile"}, "avx512"))


def test_an_allowance_has_a_bound(check: ModuleType) -> None:
    name = "void multiply_groups<Planes<4, 0, true>, true, 3, true, false>(GroupTile const&)"
    assert check.allowed(check.Leaf("avx512", name, 1, ())) == 2
    assert check.allowed(check.Leaf("avx2", name, 1, ())) == 32
    assert check.allowed(check.Leaf("avx512", "void tile_int8<12>(unsigned char const*)", 1, ())) == 0
    assert check.allowed(check.Leaf("avx2", "void tile_int8<6>(unsigned char const*)", 1, ())) == 0


def test_a_build_has_its_instruction_set(check: ModuleType) -> None:
    folder = Path("build/x/CMakeFiles/kernels_avx2.dir/native/kernels")
    assert check.build_of(folder / "linear.cpp.o") == "avx2"
    assert check.build_of(Path("leaf.o")) == "avx512"


def test_the_sources_leaves_are_known(check: ModuleType) -> None:
    assert {"tile_int8", "tile_bf16", "direct_int4", "multiply_groups", "score_tile"} <= check.leaf_names()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("g++") or not shutil.which("objdump"),
    reason="needs g++ and objdump on x86-64",
)
@pytest.mark.parametrize("spills", [0, 1])
def test_compiled_kernels(tmp_path: Path, spills: int) -> None:
    source, built = tmp_path / "leaf.cpp", tmp_path / "leaf.o"
    source.write_text(SOURCE)
    options = ["-O3", "-mavx512f", "-mavx512bw", f"-DSPILLS={spills}"]
    subprocess.run(["g++", *options, "-c", str(source), "-o", str(built)], check=True)
    run = subprocess.run([sys.executable, str(SCRIPT), str(built)], capture_output=True, text=True)
    assert run.returncode == spills, run.stdout
    assert f"2 leaf kernels with 2 inner loops: {spills} spill" in run.stdout
    assert ("tile_int8" in run.stdout and "(%rsp),%zmm" in run.stdout) == bool(spills), run.stdout
    built.write_bytes(built.read_bytes().replace(b"GCC: (", b"any: ("))
    run = subprocess.run([sys.executable, str(SCRIPT), str(built)], capture_output=True, text=True)
    assert (run.returncode, "not a failure" in run.stdout) == (0, bool(spills))


def test_missing_prerequisites_are_reported(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "check_spills.py"
    script.parent.mkdir()
    script.write_bytes(SCRIPT.read_bytes())
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (run.returncode, "no x86-64 build found" in run.stdout) == (0, True)
