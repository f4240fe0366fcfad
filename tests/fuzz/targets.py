"""What reads untrusted files, each as a function of the file's bytes, and files to start mutating from.

A target returns for every input; anything but a typed error is a defect.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from blocks import block_model
from golden import FOLDER
from headrace.chat.messages import Message
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import HeadraceError
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.text_assets import load_text_assets
from headrace.loading.weight_specs import weight_specs
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.safetensors.reader import SafetensorsFile
from headrace.weights.strict_json import read_object
from tiny import CHAT_TEMPLATE, tiny_model

Target = Callable[[Path, bytes], None]
"""Reads the bytes as a file of its kind, in a folder that its seeds have prepared."""

_LARGEST_READ = 1 << 20
_MODEL_BYTES = 2 << 20


def _whole_model(path: Path) -> None:
    """What loading does, up to the packing of weights."""
    with open_checkpoint(path) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        weight_specs(program, ProgramWeights(checkpoint, program), EngineOptions(), path)
        tokenizer, _ = load_text_assets(path, checkpoint.metadata)
        tokenizer.decode(tokenizer.encode("the mill 水", add_special=False))
        for name, info in checkpoint.tensors.items():
            if info.nbytes < _LARGEST_READ:
                checkpoint.float32(name)


def gguf(folder: Path, data: bytes) -> None:
    """The input is a header: tensors are zeros."""
    path = folder / "x.gguf"
    path.write_bytes(data)
    os.truncate(path, max(len(data), _MODEL_BYTES))
    _whole_model(path)


def safetensors(folder: Path, data: bytes) -> None:
    path = folder / "x.safetensors"
    path.write_bytes(data)
    with SafetensorsFile(path) as file:
        for info in file.tensors.values():
            file.float32(info)


def config(folder: Path, data: bytes) -> None:
    path = folder / "config.json"
    path.write_bytes(data)
    verify(record(find_model(read_object(path, 1 << 20)).define))


def tokenizer(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    load_tokenizer(folder).encode("the mill 水")


def template(folder: Path, data: bytes) -> None:
    ChatTemplate(data.decode(errors="replace")).render([Message(role="user", content="hi")])


TARGETS: dict[str, Target] = {
    target.__name__: target for target in (gguf, safetensors, config, tokenizer, template)
}


def run(target: str, folder: Path, data: bytes) -> None:
    """One input; typed errors are what hostile files should give."""
    with contextlib.suppress(HeadraceError):
        TARGETS[target](folder, data)


def seeds(target: str, folder: Path) -> list[bytes]:
    """Valid files of the target's kind; `folder` gets what must lie beside them."""
    match target:
        case "gguf":
            return [_gguf_header(folder, type) for type in ("Q4_0", "Q6_K")]
        case "safetensors":
            return [save({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16)})]
        case "config":
            return [path.read_bytes() for path in sorted(FOLDER.glob("*/config.json"))]
        case "tokenizer":
            return [(tiny_model(folder / "tiny") / "tokenizer.json").read_bytes()]
        case _:
            return [CHAT_TEMPLATE.encode(), b"{%- set x = namespace(a=[1]) %}{{ x.a | tojson }}{{ 'b' * 3 }}"]


def _gguf_header(folder: Path, type: str) -> bytes:
    path = block_model(folder, type)
    data = path.read_bytes()
    with open_checkpoint(path) as checkpoint:
        return data[: min(info.offset for info in checkpoint.tensors.values())]


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """One to four changes: a bit, a byte, a word that is extreme, a piece repeated, or a cut."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 5)):
        place = int(random.integers(0, max(len(changed), 1)))
        match int(random.integers(0, 5)):
            case 0 if changed:
                changed[place] ^= 1 << int(random.integers(0, 8))
            case 1 if changed:
                changed[place] = int(random.integers(0, 256))
            case 2:
                extreme = [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
                word = struct.pack("<Q", extreme[int(random.integers(0, 7))])
                changed[place : place + 8] = word[: len(changed[place : place + 8])]
            case 3:
                changed[place:place] = changed[place : place + int(random.integers(1, 40))]
            case _:
                if random.integers(0, 4) == 0:
                    del changed[place:]
    return bytes(changed)
