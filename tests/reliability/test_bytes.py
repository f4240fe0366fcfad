"""F8: characters cut between tokens in every way, also where the prompt ends within one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from in_process import Running, running_server
from msgspec.structs import replace
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from headrace import _native
from headrace.engine.engine import Engine, EngineLimits
from headrace.executors.executor import ExecutorLimits
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.sampling.sampler import Sampler
from headrace.tokenization.tokenizer import load_tokenizer

TEXT = "é€🌊".encode()  # characters of two, three and four bytes


class ScriptedExecutor:
    """Says the tokens of `script` one after the other, whatever it is asked."""

    def __init__(self, capacity: ExecutorLimits, vocabulary: int) -> None:
        self.capacity = capacity
        self.script: list[int] = []
        self.prompt_tokens = 0
        self._vocabulary = vocabulary

    def run(self, step: Step) -> Array:
        logits = np.zeros((1, self._vocabulary), np.float32)
        logits[0, self.script[int(step.positions[-1]) + 1 - self.prompt_tokens]] = 1
        return logits


def letters_of_bytes() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tokenizer(folder: Path) -> dict[bytes, int]:
    """A token for every part of TEXT, as bytes to ids."""
    letters = letters_of_bytes()
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [TEXT[i:j] for i in range(len(TEXT)) for j in range(i + 2, len(TEXT) + 1)]
    ids = {piece: number for number, piece in enumerate(pieces)}
    vocabulary = {"".join(letters[byte] for byte in piece): number for piece, number in ids.items()}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return ids


def splits(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut `data` into parts."""
    for cuts in range(1 << (len(data) - 1)):
        borders = [0, *(i for i in range(1, len(data)) if cuts >> (i - 1) & 1), len(data)]
        yield [data[i:j] for i, j in itertools.pairwise(borders)]


@pytest.fixture
def scripted(tiny: Path, tmp_path: Path) -> Iterator[tuple[Running, ScriptedExecutor, dict[bytes, int]]]:
    ids = write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    loaded = load_model(str(tiny), EngineOptions(max_num_seqs=1, threads=1))
    loaded.close()
    executor = ScriptedExecutor(
        ExecutorLimits(max_tokens=64, max_rows=1, page_count=8, page_tokens=16), len(ids)
    )
    limits = EngineLimits(context_length=64, max_num_seqs=1)
    sampler = Sampler(len(ids), _native.Pool(1))
    engine = Engine(executor, sampler, tokenizer, limits)
    model = replace(loaded, tokenizer=tokenizer, engine=engine)
    with running_server(model) as server:
        yield server, executor, ids
    engine.close()


def test_f8_every_split_of_every_character(
    scripted: tuple[Running, ScriptedExecutor, dict[bytes, int]], show
) -> None:
    server, executor, ids = scripted
    http = server.http()
    streams = 0
    for cut in range(len(TEXT)):
        prompt = [ids[b"a"], *(ids[TEXT[i : i + 1]] for i in range(cut))]
        for parts in splits(TEXT[cut:]):
            executor.script, executor.prompt_tokens = [ids[part] for part in parts], len(prompt)
            body = {"prompt": prompt, "max_tokens": len(parts), "stream": True, "temperature": 0}
            events = http.post("/v1/completions", json=body).text.split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            # What completes a character of the prompt is no character of the answer.
            assert text == TEXT[cut:].decode(errors="replace"), (cut, parts)
            streams += 1
    show(f"{streams} streams: every split of {len(TEXT)} bytes, after prompts that end before each of them")
