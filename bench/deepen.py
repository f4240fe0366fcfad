"""Make a larger model with identical output, by adding layers that contribute nothing.

    python bench/deepen.py MODEL FOLDER [--layers 160]

The gain of speculation depends on two things: the acceptance rate, which needs trained models, and the cost
of a step. `mini` at int4 fits into the CPU caches, where five tokens cost more than twice as much as one;
for a model that is read from memory, additional tokens are cheap. The new folder generates the same tokens
as MODEL, since the matrices of added layers that write into the hidden state are zero, and its steps cost
as much as with so many real layers. Label its results accordingly.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.weights.safetensors.reader import SafetensorsFile
from headrace.weights.safetensors.writer import write_safetensors
from headrace.weights.tensor_output import TensorOutput

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
WRITES = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of one safetensors file, of Llama's architecture")
    parser.add_argument("folder", type=Path, help="the new folder")
    parser.add_argument("--layers", type=int, default=160, help="number of added layers")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True)
    for name in FILES:
        if (asked.model / name).is_file():
            shutil.copy(asked.model / name, asked.folder)
    config = json.loads((asked.model / "config.json").read_text())
    depth = config["num_hidden_layers"]
    config["num_hidden_layers"] = depth + asked.layers
    (asked.folder / "config.json").write_text(json.dumps(config, indent=2))
    stored = SafetensorsFile(asked.model / "model.safetensors")
    with (asked.folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, outputs(stored, depth, asked.layers), lambda done: None)
    stored.close()


def outputs(stored: SafetensorsFile, depth: int, added: int) -> list[TensorOutput]:
    """The file's tensors, and `added` copies of its last layer whose output matrices are zero."""
    found = [output(stored, name, name) for name in stored.tensors]
    for name in stored.tensors:
        match = LAYER.fullmatch(name)
        if match and int(match[1]) == depth - 1:
            names = [f"model.layers.{depth + at}.{match[2]}" for at in range(added)]
            found += [output(stored, new, name, silent=match[2] in WRITES) for new in names]
    return found


def output(stored: SafetensorsFile, new: str, name: str, *, silent: bool = False) -> TensorOutput:
    """The tensor `name` as `new`; all zeros if `silent`."""
    info = stored.tensors[name]

    def blocks() -> Iterator[np.ndarray]:
        block = np.zeros(info.nbytes, np.uint8)
        if not silent:
            stored.read_into(info, 0, block.data)
        yield block

    return TensorOutput(new, info.dtype, info.shape, info.nbytes, (name,), blocks)


if __name__ == "__main__":
    main()
