"""Types of the native module; built from native/."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# ops: name -> names of inputs, outputs, weights, constants, integers and floats (native/ops.inl)
OP_FORMS: dict[str, tuple[tuple[str, ...], ...]]
OP_ENUMERATIONS: dict[str, tuple[str, ...]]

# executor
def isa() -> str: ...
def usable_isas() -> list[str]: ...
def allocate(nbytes: int, small_nbytes: int = 0) -> NDArray[np.uint8]: ...
def checksum(data: NDArray[np.uint8]) -> int: ...
def read_bandwidth(pool: Pool, nbytes: int = 268435456, repeats: int = 5) -> float: ...
def compute_peaks(pool: Pool, rounds: int = 65536, repeats: int = 25) -> list[float]: ...

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def width(self) -> int: ...
    def set_width(self, width: int) -> None: ...

class Signal:
    def __init__(self) -> None: ...
    def stop(self) -> None: ...
    def reset(self) -> None: ...
    @property
    def steps(self) -> int: ...

class Executor:
    def __init__(
        self,
        pool: Pool,
        arena: NDArray[np.uint8],
        values: Sequence[tuple[str, int, int]],
        weights: Sequence[tuple[str, int, int, NDArray[np.uint8]]],
        constants: Sequence[NDArray[np.float32]],
        kv: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8], int, int, str, NDArray[np.float32]]],
        states: Sequence[tuple[NDArray[np.uint8], int]],
        max_tokens: int,
        max_rows: int,
        instructions: Sequence[
            tuple[str, list[int], list[int], list[int], list[int], list[int], list[float]]
        ],
        poison: bool = False,
        inputs: Sequence[int] = (),
        group: tuple[
            NDArray[np.uint8],
            int,
            int,
            int,
            list[int],
            list[tuple[int, int, int, int]],
            list[tuple[int, int, int]],
        ]
        | None = None,
    ) -> None: ...
    def run(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        slots: NDArray[np.int32],
        query_starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        rows: NDArray[np.int32],
        state_slots: NDArray[np.int32],
        adapters: NDArray[np.int32] | None = None,
        token_types: NDArray[np.int32] | None = None,
        timed: bool = False,
    ) -> list[float]: ...
    def run_multi_step(
        self,
        output: int,
        sampler: Sampler,
        sampling: Sequence[SampleRow],
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        slots: NDArray[np.int32],
        query_starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        rows: NDArray[np.int32],
        state_slots: NDArray[np.int32],
        adapters: NDArray[np.int32] | None,
        steps: int,
        lookahead_tokens: int,
        seconds: float = 0.0,
        texts: Sequence[SuffixAutomaton | None] = (),
        depths: Sequence[int] = (),
        token_budget: int = 0,
        signal: Signal | None = None,
    ) -> MultiStepResult: ...
    def set_adapter(
        self,
        slot: int,
        format: str,
        pairs: Sequence[tuple[int, int, float, NDArray[np.uint8], NDArray[np.uint8]]],
    ) -> None: ...
    def value(self, id: int, rows: int) -> NDArray[np.float32]: ...

class MultiStepResult:
    @property
    def tokens(self) -> list[list[int]]: ...
    @property
    def steps(self) -> int: ...
    @property
    def drafts(self) -> list[tuple[int, int, int, int, int]]: ...
    @property
    def draft_steps(self) -> list[tuple[int, float]]: ...
    @property
    def plain_steps(self) -> int: ...
    @property
    def plain_seconds(self) -> float: ...

# turns
TURNS_BYTES: int

class Turns:
    def __init__(self, fd: int = -1, cores: int = 0) -> None: ...
    @property
    def cores(self) -> int: ...
    def join(self, share: float = 1.0, most: int = 0) -> int: ...
    def leave(self, slot: int) -> None: ...
    def begin(
        self, slot: int, tier: int, deadline_s: float, predicted_s: float, whole: bool = True
    ) -> float: ...
    def held(self, slot: int) -> int: ...
    def end(self, slot: int, again: bool) -> None: ...
    def contended(self, within_s: float = 0.0) -> bool: ...
    def members(self) -> list[tuple[int, float, int]]: ...

# drafts
MATCH_KINDS: int

class SuffixAutomaton:
    def __init__(self) -> None: ...
    def extend(self, tokens: Sequence[int]) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def match_length(self) -> int: ...
    @property
    def match_kind(self) -> int: ...
    def draft(self, count: int) -> list[int]: ...

# sample
def sampler_fields() -> list[tuple[str, str]]: ...

class SampleSettings:
    """Its attributes are what sampler_fields() names."""

    def __init__(self) -> None: ...
    def __getattr__(self, name: str) -> object: ...
    def __setattr__(self, name: str, value: object) -> None: ...

class SampleRow:
    def __init__(
        self, settings: SampleSettings, prompt: NDArray[np.int32], history: NDArray[np.int32]
    ) -> None: ...
    def append(self, token: int, breaks: bool = False) -> None: ...
    def for_drafts(self) -> SampleRow: ...
    @property
    def mu(self) -> float: ...
    @property
    def position(self) -> int: ...

class Sampler:
    def __init__(self, vocabulary: int, pool: Pool) -> None: ...
    def sample(
        self,
        logits: NDArray[np.float32],
        rows: list[SampleRow],
        allowed: Sequence[NDArray[np.uint32] | None] | None,
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.float32],
        tuple[tuple[tuple[int, float], ...], ...],
        list[tuple[int, int]],
    ]: ...
    def sample_draft(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SampleRow],
        firsts: Sequence[int],
        drafts: Sequence[Sequence[int]],
    ) -> list[list[int]]: ...
    def top(
        self, logits: NDArray[np.float32], rows: NDArray[np.int32], tops: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]: ...
    def score(
        self,
        logits: NDArray[np.float32],
        rows: NDArray[np.int32],
        tokens: NDArray[np.int32],
        tops: int,
    ) -> list[tuple[float, int, tuple[tuple[int, float], ...], int]]: ...

# formats
def linear_scratch_bytes(rows: int, k: int, formats: Sequence[str]) -> int: ...
def moe_scratch_bytes(
    rows: int, experts: int, top_k: int, outer: int, inner: int, formats: Sequence[str]
) -> int: ...
def packed_nbytes(format: str, n: int, k: int) -> int: ...
def pack(
    pool: Pool,
    format: str,
    source: NDArray[np.uint8],
    source_type: str,
    n: int,
    k: int,
    panel0: int,
    panel1: int,
    packed: NDArray[np.uint8],
) -> None: ...
def unpack_rows(
    format: str, packed: NDArray[np.uint8], n: int, k: int, rows: NDArray[np.int32]
) -> NDArray[np.float32]: ...
def linear(
    pool: Pool,
    x: NDArray[np.float32],
    weights: Sequence[tuple[str, int, int, NDArray[np.uint8]]],
    biases: Sequence[NDArray[np.float32] | None],
    act: int = 0,
    norm: NDArray[np.float32] | None = None,
    eps: float = 0.0,
    residual: NDArray[np.float32] | None = None,
) -> list[NDArray[np.float32]]: ...
