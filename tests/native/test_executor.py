"""The native executor on tiny hand-made programs, against NumPy."""

import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace import _native

NO_FACTORS = np.zeros(0, np.float32)
PAGE = 16
D, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 32, 4, 2, 8, 40


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def packed(array: np.ndarray) -> tuple[str, int, int, np.ndarray]:
    """A float32 weight in the layout of the native formats: panels of 32 outputs, transposed inside."""
    n, k = array.shape
    panels = -(-n // 32)
    rows = np.zeros((panels * 32, k), dtype=np.float32)
    rows[:n] = array
    data = _native.allocate(rows.nbytes)
    data[:] = np.ascontiguousarray(rows.reshape(panels, 32, k).transpose(0, 2, 1)).view(np.uint8).ravel()
    return ("f32", n, k, data)


class Tiny:
    """One block: embed, q/k/v, attention, output, head. Values lie one after another, nothing reused."""

    columns = (D, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, HEADS * HEAD_DIM,
               HEADS * HEAD_DIM, D, D, VOCABULARY)  # fmt: skip

    def __init__(self, threads: int = 2, poison: bool = True, max_tokens: int = 64) -> None:
        random = np.random.default_rng(5)
        self.embedding = random.normal(size=(VOCABULARY, D)).astype(np.float32)
        self.q, self.k, self.v, self.o = (
            (random.normal(size=(n, D)) / np.sqrt(D)).astype(np.float32)
            for n in (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, D)
        )
        self.norm = random.normal(size=D).astype(np.float32)
        self.inv_freq = (10000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))).astype(np.float32)
        self.pages = 8
        kv_bytes = self.pages * KV_HEADS * PAGE * HEAD_DIM * 4
        self.kv = (*(_native.allocate(kv_bytes) for _ in range(2)), KV_HEADS, HEAD_DIM, "f32", NO_FACTORS)
        values, offset = [], 0
        for index, columns in enumerate(self.columns):
            values.append(("R" if index >= 7 else "T", columns, offset))
            offset += columns * 4 * max_tokens
        self.arguments = {
            "arena": _native.allocate(offset),
            "values": values,
            "weights": [packed(w) for w in (self.embedding, self.q, self.k, self.v, self.o)],
            "constants": [self.norm, self.inv_freq],
            "kv": [self.kv],
            "states": [],
            "max_tokens": max_tokens,
            "max_rows": max_tokens,
            "instructions": [
                ("embed", [], [0], [0], [], [], []),
                ("fused_linear", [0, -1], [1, 2, 3], [1, 2, 3], [0, -1, -1, -1], [0], [1e-5]),
                ("rope_kv_write", [1, 2, 3], [4], [], [1, -1, -1], [0, HEADS, HEAD_DIM], [1e-6, 1.0]),
                (
                    "attend",
                    [4, -1, -1],
                    [5],
                    [],
                    [-1, -1],
                    [0, HEADS, 0, HEAD_DIM, 0, 0],
                    [HEAD_DIM**-0.5, 0.0],
                ),
                ("fused_linear", [5, 0], [6], [4], [-1, -1], [0], [0.0]),
                ("gather", [6], [7], [], [], [], []),
                ("fused_linear", [7, -1], [8], [0], [-1, -1], [0], [0.0]),
            ],
            "poison": poison,
        }
        self.pool = _native.Pool(threads)

    def build(self, **changes: object) -> "_native.Executor":
        return _native.Executor(self.pool, **{**self.arguments, **changes})

    def expected(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [tokens, vocabulary] of one sequence."""
        x = self.embedding[tokens]
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.norm
        count = len(tokens)
        angles = np.arange(count, dtype=np.float32)[:, None] * self.inv_freq
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

        def rope(y: np.ndarray) -> np.ndarray:
            a, b = np.split(y, 2, axis=-1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        q = rope((normed @ self.q.T).reshape(count, HEADS, HEAD_DIM))
        k = rope((normed @ self.k.T).reshape(count, KV_HEADS, HEAD_DIM)).repeat(HEADS // KV_HEADS, axis=1)
        v = (normed @ self.v.T).reshape(count, KV_HEADS, HEAD_DIM).repeat(HEADS // KV_HEADS, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) * HEAD_DIM**-0.5
        scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hts,shd->thd", weights, v).reshape(count, -1)
        return (x + attended @ self.o.T) @ self.embedding.T


def step(tokens: np.ndarray, begin: int, end: int, table: list[int]) -> dict[str, np.ndarray]:
    """Tokens begin .. end of one sequence whose pages are `table`, every row's logits wanted."""
    positions = np.arange(begin, end, dtype=np.int32)
    slots = np.array([table[p // PAGE] * PAGE + p % PAGE for p in positions], dtype=np.int32)
    return {
        "tokens": tokens[begin:end].astype(np.int32),
        "positions": positions,
        "slots": slots,
        "query_starts": ints(0, end - begin),
        "lengths": ints(end),
        "block_tables": np.array([table], dtype=np.int32),
        "rows": np.arange(end - begin, dtype=np.int32),
        "state_slots": ints(0),
    }


TOKENS = np.random.default_rng(7).integers(0, VOCABULARY, 50).astype(np.int32)
TABLE = [5, 2, 7, 0]


def test_logits_match_numpy() -> None:
    tiny = Tiny()
    executor = tiny.build()
    executor.run(**step(TOKENS, 0, 50, TABLE))
    np.testing.assert_allclose(executor.value(8, 50), tiny.expected(TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_and_threads_change_no_bit(threads: int, chunk: int) -> None:
    whole = Tiny().build()
    whole.run(**step(TOKENS, 0, 50, TABLE))
    logits = whole.value(8, 50).copy()
    executor = Tiny(threads=threads, poison=False).build()
    for begin in range(0, 50, chunk):
        end = min(50, begin + chunk)
        executor.run(**step(TOKENS, begin, end, TABLE))
        assert np.array_equal(executor.value(8, end - begin), logits[begin:end])


def test_poison_fills_what_is_dead() -> None:
    executor = Tiny(poison=True).build()
    executor.run(**step(TOKENS, 0, 3, TABLE))
    assert np.isnan(executor.value(1, 3)).all()
    assert np.isfinite(executor.value(8, 3)).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", ints(0, VOCABULARY, 1), "token 40 is not in 0 .. 39"),
        ("tokens", ints(0, 1), "positions has 3 rows where 2"),
        ("positions", ints(0, 1, 3), "position 3"),
        ("slots", ints(0, 1, 8 * PAGE), "slot 128"),
        ("slots", ints(-1, 1, 2), "slot -1"),
        ("lengths", ints(65), "length 65"),
        ("lengths", ints(0), "length 0"),
        ("block_tables", np.array([[8, 2]], dtype=np.int32), "page id 8"),
        ("rows", ints(3), "output row 3"),
        ("query_starts", ints(0, 2), "last query start 2"),
        ("query_starts", ints(0, 3, 3), "query_starts has 3"),
    ],
)
def test_wrong_step_is_refused(name: str, value: np.ndarray, message: str) -> None:
    executor = Tiny().build()
    with pytest.raises(ValueError, match=message):
        executor.run(**{**step(TOKENS, 0, 3, TABLE), name: value})


def test_steps_above_the_size_are_refused() -> None:
    executor = Tiny(max_tokens=4).build()
    with pytest.raises(ValueError, match=r"number of tokens 5 is not in 1 \.\. 4"):
        executor.run(**step(TOKENS, 0, 5, TABLE))
    with pytest.raises(TypeError):
        executor.run(**{**step(TOKENS, 0, 3, TABLE), "tokens": np.zeros(3, dtype=np.int64)})


def test_a_position_beyond_its_table_is_refused() -> None:
    tiny = Tiny()
    positions = ("embed_positions", [], [0], [0], [], [], [])
    executor = tiny.build(instructions=[positions, *tiny.arguments["instructions"][1:]])
    executor.run(**step(TOKENS, 0, VOCABULARY, TABLE))
    with pytest.raises(ValueError, match=r"position 40 is not in 0 \.\. 39"):
        executor.run(**step(TOKENS, VOCABULARY, VOCABULARY + 1, TABLE))


@pytest.mark.parametrize(
    ("index", "instruction", "message"),
    [
        (5, ("scatter", [6], [7], [], [], [], []), "no such instruction"),
        (5, ("gather", [6, 6], [7], [], [], [], []), "needs 1 inputs, has 2"),
        (5, ("gather", [9], [7], [], [], [], []), "input id 9 is not in 0 .. 8"),
        (5, ("gather", [5], [8], [], [], [], []), "40 columns where 32 are needed"),
        (
            3,
            ("attend", [4, -1, -1], [5], [], [-1, -1], [1, HEADS, 0, HEAD_DIM, 0, 0], [0.3, 0.0]),
            "no KV layer 1",
        ),
        (
            3,
            ("attend", [4, -1, -1], [5], [], [-1, -1], [0, 3, 0, HEAD_DIM, 0, 0], [0.3, 0.0]),
            "3 query heads",
        ),
        (4, ("fused_linear", [5, 0], [5], [4], [-1, -1], [0], [0.0]), "lies over input"),
        (4, ("fused_linear", [5, 0], [6], [4], [1, -1], [0], [0.0]), "constant 1 has 4 numbers"),
        (4, ("fused_linear", [6, -1], [5], [4], [-1, -1], [0], [0.0]), "read before it is made"),
        (4, ("act", [5], [6], [], [], [9], []), "no activation 9"),
        (4, ("layer_norm", [5], [6], [], [1, -1], [], [1e-5]), "constant 1 has 4 numbers"),
        (4, ("layer_norm", [5], [6], [], [-1, -1], [], [1e-5]), "constant id -1"),
        (4, ("scale", [8], [6], [], [], [], [2.0]), "mixes rows 'T' and 'R'"),
        (4, ("take_columns", [5], [6], [], [], [0] * 31, []), "32 columns where 31 are needed"),
        (4, ("take_columns", [5], [6], [], [], [0] * 31 + [32], []), "takes column 32 of 32"),
        (4, ("take_columns", [5], [6], [], [], [0] * 31 + [-1], []), "takes column -1 of 32"),
        (4, ("take_columns", [5], [5], [], [], [0] * 32, []), "lies over input"),
        (4, ("softcap", [1], [2], [], [], [], [2.0]), "32 columns where 16 are needed"),
        (2, ("kv_write", [1, 2], [], [], [], [0], []), "32 columns where 16 are needed"),
        (2, ("kv_write", [2, 3], [], [], [], [1], []), "no KV layer 1"),
        (2, ("kv_write", [2, -1], [], [], [], [0], []), "writes values where the layer has them"),
        (2, ("kv_write", [-1, 3], [], [], [], [0], []), "input id -1"),
        (
            3,
            ("attend", [4, -1, -1], [5], [], [-1, -1], [0, HEADS, 0, 4, 0, 0], [0.3, 0.0]),
            "values of 4 entries",
        ),
        (
            3,
            ("attend", [4, -1, -1], [5], [], [0, -1], [0, HEADS, 0, HEAD_DIM, 0, 0], [0.3, 0.0]),
            "constant 0 has 32 numbers",
        ),
        (4, ("head_linear", [5], [6], [4], [], [3], []), "32 columns are not those of 3 heads"),
        (4, ("head_linear", [5], [6], [4], [], [-1], []), "not those of -1 heads"),
        (4, ("head_linear", [5], [6], [4], [], [2], []), "32 columns where 64 are needed"),
        (4, ("head_linear", [5], [5], [4], [], [1], []), "lies over input"),
        (4, ("join", [5, 0], [6], [], [], [4], []), "32 columns where 64 are needed"),
        (4, ("join", [5, 0], [6], [], [], [0], []), "not those of 0 heads"),
        (4, ("rope", [5], [6], [], [1], [5, 2], [1.0]), "32 columns are not heads of 5"),
        (4, ("rope", [5], [6], [], [1], [0, 2], [1.0]), "not heads of 0"),
        (4, ("rope", [5], [6], [], [1], [8, 6], [1.0]), "constant 1 has 4 numbers where 3"),
        (4, ("rope", [5], [6], [], [1], [8, 10], [1.0]), "above the head's 8"),
        (4, ("rope", [5], [6], [], [-1], [8, 8], [1.0]), "constant id -1"),
    ],
)
def test_wrong_instruction_is_refused(index: int, instruction: tuple[object, ...], message: str) -> None:
    tiny = Tiny()
    instructions = list(tiny.arguments["instructions"])
    instructions[index] = instruction
    with pytest.raises(ValueError, match=message):
        tiny.build(instructions=instructions)


CONV = ("causal_conv", [1], [4], [], [2, -1], [0, 3, 1], [])


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (CONV, None),
        (("causal_conv", [1], [4], [], [2, 0], [0, 3, 1], []), None),
        (("causal_conv", [1], [4], [], [2, -1], [0, 3, 7], []), "no activation 7"),
        (("causal_conv", [1], [4], [], [2, -1], [0, 1, 1], []), "has 1 taps"),
        (("causal_conv", [1], [4], [], [2, -1], [0, 65, 1], []), "has 65 taps"),
        (("causal_conv", [1], [4], [], [2, -1], [2, 3, 1], []), "there is no state 2"),
        (("causal_conv", [1], [4], [], [2, -1], [1, 3, 1], []), "state 1 has 32 numbers where 64"),
        (("causal_conv", [1], [4], [], [0, -1], [0, 3, 1], []), "constant 0 has 32 numbers where 96"),
        (("causal_conv", [1], [4], [], [2, 1], [0, 3, 1], []), "constant 1 has 4 numbers where 32"),
        (("causal_conv", [1], [4], [], [-1, -1], [0, 3, 1], []), "constant id -1"),
        (("causal_conv", [1], [1], [], [2, -1], [0, 3, 1], []), "lies over input"),
        (("causal_conv", [1], [2], [], [2, -1], [0, 3, 1], []), "makes 16 columns of 32"),
        (("causal_conv", [1], [7], [], [2, -1], [0, 3, 1], []), "works on rows 'T' only"),
        (
            ("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [1, 3], [0.0, 1.0]),
            "16 into 3 groups of B and C",
        ),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [1, 8], [0.0, 1.0]), None),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 0], [1, 8], [0.0, 1.0]), "constant 0 has 32"),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [0, 8], [0.0, 1.0]), "state 0 has 64"),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [1, 0], [0.0, 1.0]), "0 groups"),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [1, 8], [2.0, 1.0]), "not in order"),
        (("selective_scan", [1, 2, 3], [4], [], [3, 3, 3], [1, 8], [np.nan, 1.0]), "not in order"),
        (("rms_norm", [1], [4], [], [0], [3], [1e-5]), "32 entries cannot be normed in 3 runs"),
    ],
)
def test_recurrent_instructions_are_checked(instruction: tuple[object, ...], message: str | None) -> None:
    tiny = Tiny()
    tiny.arguments["constants"] += [np.ones(3 * D, np.float32), np.ones(16, np.float32)]
    tiny.arguments["states"] = [(_native.allocate(4 * 64 * 4), 64), (_native.allocate(4 * 32 * 4), 32)]
    tiny.arguments["instructions"][2] = instruction
    if message is None:
        tiny.build().run(**step(TOKENS, 0, 5, TABLE))
    else:
        with pytest.raises(ValueError, match=message):
            tiny.build()


def test_wrong_states_are_refused() -> None:
    tiny = Tiny()
    tiny.arguments["instructions"][2] = CONV
    for states, message in (
        ([(100, 64)], "state 0 has 100 bytes, which must be a number of slots of 256"),
        ([(0, 64)], "state 0 has 0 bytes"),
        ([(256, 0)], "state 0 has 0 numbers"),
        ([(512, 64), (256, 64)], "state 1 has 1 slots, those before it 2"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny.build(states=[(_native.allocate(nbytes), width) for nbytes, width in states])


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("kv_type", "bits"),
    [
        ("int8", (8, 8)),
        ("k8v4", (8, 4)),
        ("int4", (4, 4)),
        ("int3", (3, 3)),
        ("k4v3", (4, 3)),
        ("k3v4", (3, 4)),
    ],
)
def test_a_key_that_is_no_number_spoils_its_sequence_alone(
    monkeypatch: pytest.MonkeyPatch, kv_type: str, bits: tuple[int, int], number: float
) -> None:
    for name, count in {"HEADS": 2, "KV_HEADS": 1, "HEAD_DIM": 16}.items():  # which 3 bits need
        monkeypatch.setitem(globals(), name, count)
    tiny = Tiny(poison=False)
    k, v = (
        _native.allocate(tiny.pages * KV_HEADS * (PAGE * HEAD_DIM * each // 8 + 2 * PAGE)) for each in bits
    )
    embedding = tiny.embedding.copy()
    embedding[7] = number  # of the token 7; the output matrix is another one
    *instructions, head = tiny.arguments["instructions"]
    executor = tiny.build(
        kv=[(k, v, KV_HEADS, HEAD_DIM, kv_type, NO_FACTORS)],
        weights=[packed(embedding), *tiny.arguments["weights"][1:], packed(tiny.embedding)],
        instructions=[*instructions, (*head[:3], [5], *head[4:])],
    )
    good, bad = np.where(TOKENS == 7, 8, TOKENS)[:20], ints(3, 7, 5)
    executor.run(**step(good, 0, 20, [1, 2]))
    alone = executor.value(8, 20).copy()
    both = {
        name: [step(good, 0, 20, [1, 2])[name], step(bad, 0, 3, [3, 0])[name]]
        for name in step(good, 0, 1, [1])
    }
    together = {name: np.concatenate(parts) for name, parts in both.items()}
    together |= {
        "query_starts": ints(0, 20, 23),
        "rows": np.arange(23, dtype=np.int32),
        "state_slots": ints(0, 1),
    }
    executor.run(**together)
    logits = executor.value(8, 23)
    assert np.array_equal(logits[:20], alone)
    assert not np.isfinite(logits[21:]).any(), "what follows the token has attended to it"
    executor.run(**step(good, 0, 3, [3]))  # what was in the page leaves nothing behind
    assert np.array_equal(executor.value(8, 3), alone[:3])


def test_wrong_memory_is_refused() -> None:
    tiny = Tiny()
    with pytest.raises(ValueError, match="value 8 ends at byte"):
        tiny.build(arena=tiny.arguments["arena"][:-4])
    with pytest.raises(ValueError, match=r"weight 4 has \d+ bytes where its format needs"):
        tiny.build(weights=[*tiny.arguments["weights"][:4], ("f32", D, D, _native.allocate(D * D * 4 - 1))])
    with pytest.raises(ValueError, match="KV layer 0"):
        tiny.build(kv=[(tiny.kv[0], tiny.kv[1][:-4], *tiny.kv[2:])])
    with pytest.raises(ValueError, match="layer that has none"):
        tiny.build(kv=[(tiny.kv[0], _native.allocate(0), *tiny.kv[2:])])
    with pytest.raises(ValueError, match="no KV type f16"):
        tiny.build(kv=[(*tiny.kv[:4], "f16", NO_FACTORS)])
    with pytest.raises(ValueError, match="pages of 320 and 192 bytes"):
        tiny.build(kv=[(_native.allocate(4 * 320 + 1), *tiny.kv[1:4], "k8v4", NO_FACTORS)])
    with pytest.raises(ValueError, match="keeps codes, which need values of their own"):
        tiny.build(kv=[(tiny.kv[0], _native.allocate(0), KV_HEADS, HEAD_DIM, "int8", NO_FACTORS)])
    with pytest.raises(ValueError, match="a head dimension that is a multiple of 16"):
        tiny.build(kv=[(*tiny.kv[:4], "k4v3", NO_FACTORS)])
    with pytest.raises(ValueError, match="factors of balance"):
        tiny.build(kv=[(*tiny.kv[:4], "int8", np.ones(3, np.float32))])
    with pytest.raises(ValueError, match="no value 9"):
        tiny.build().value(9, 1)
    with pytest.raises(ValueError, match="0 to 64 rows"):
        tiny.build().value(8, 65)


def test_views_keep_the_arena_alive() -> None:
    executor = Tiny(poison=False).build()
    executor.run(**step(TOKENS, 0, 3, TABLE))
    view = executor.value(8, 3)
    before = view.copy()
    del executor
    gc.collect()
    assert np.array_equal(view, before)


def test_runs_from_many_python_threads_take_turns() -> None:
    executor = Tiny().build()
    inputs = step(TOKENS, 0, 50, TABLE)
    executor.run(**inputs)
    expected = executor.value(8, 50).copy()
    threads = [threading.Thread(target=lambda: [executor.run(**inputs) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(executor.value(8, 50), expected)


@pytest.mark.parametrize("nbytes", [0, 1, 5000, 40 << 20])
def test_allocate_gives_zeroed_aligned_writable_memory(nbytes: int) -> None:
    data = _native.allocate(nbytes)
    assert data.dtype == np.uint8 and data.shape == (nbytes,)
    if nbytes:
        assert data.ctypes.data % 64 == 0 and not data[:: max(1, nbytes // 1000)].any()
        data[-1] = 1
    with pytest.raises(ValueError, match="-1 bytes"):
        _native.allocate(-1)
    with pytest.raises(ValueError, match="small pages"):
        _native.allocate(1, -1)


def page_advice(address: int) -> set[str]:
    """What the system was told of huge pages at an address: hg, nh or nothing."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        place = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if place is not None:
            inside = int(place[1], 16) <= address < int(place[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return {"hg", "nh"} & set(line.split())
    raise AssertionError(f"nothing lies at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists() or not Path("/proc/self/smaps").exists(),
    reason="this system has no transparent huge pages",
)
@pytest.mark.parametrize(
    ("small", "huge_from"), [(1, 4096), (256 << 10, 256 << 10), (31 << 20, 31 << 20), (32 << 20, None)]
)
def test_huge_pages_start_behind_the_small_ones(small: int, huge_from: int | None) -> None:
    data = _native.allocate(33 << 20, small)
    address = data.ctypes.data
    assert address % 64 == 0 and page_advice(address) == {"nh"}
    if huge_from is None:
        assert page_advice(address + data.nbytes - 1) == {"nh"}
    else:
        assert (address + huge_from) % (2 << 20) == 0 and page_advice(address + huge_from) == {"hg"}
    data[0] = data[-1] = data[small] = 1
    assert int(data.sum()) == 3


def test_read_bandwidth_is_positive() -> None:
    assert _native.read_bandwidth(_native.Pool(2), 8 << 20, 3) > 1e8
    with pytest.raises(ValueError, match="at least"):
        _native.read_bandwidth(_native.Pool(1), 8, 3)


def test_pool_refuses_bad_sizes() -> None:
    assert _native.Pool(2).threads == 2
    with pytest.raises(ValueError, match="1 to 1024 threads, not 0"):
        _native.Pool(0)


def run_python(code: str, isa: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HEADRACE_ISA": isa}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_isa_can_be_forced() -> None:
    assert _native.isa() in _native.usable_isas()
    for isa in _native.usable_isas():
        assert run_python("from headrace import _native; print(_native.isa())", isa).stdout.strip() == isa
    refused = run_python("from headrace import _native; _native.isa()", "sse9")
    assert refused.returncode != 0
    assert "HEADRACE_ISA=sse9 is not usable on this machine: set it to one of portable" in refused.stderr
