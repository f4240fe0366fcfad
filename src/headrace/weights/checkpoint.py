"""A checkpoint: a folder with config.json and safetensors files, one or several with an index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, ModelNotFound, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.closeable import Closeable
from headrace.weights.confined import confined
from headrace.weights.gguf.checkpoint import GgufCheckpoint
from headrace.weights.gliner import GLINER, encoder_config, encoder_tensors, with_vocabulary
from headrace.weights.gliner2 import ENCODER_CONFIG, gliner2_encoder, gliner2_tensors, is_gliner2_config
from headrace.weights.modules import read_modules
from headrace.weights.quantized.checkpoint import QuantizedCheckpoint, quantization_of
from headrace.weights.safetensors.plain_names import plain_tensors, text_model_config
from headrace.weights.safetensors.reader import SafetensorsFile, element_bytes
from headrace.weights.tensor_file import TensorInfo

SINGLE = "model.safetensors"
CONFIGS = ("config.json", GLINER)
"""Files of which a model's folder has at least one."""
INDEX = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 32 << 20  # 140,000 tensors of the largest public model need 13 MB


class Checkpoint(Closeable):
    """An open folder, a `CheckpointReader`.

    `tensors` lists what the files hold; nothing is read until asked for.
    """

    metadata: None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        refuse_adapter(folder)
        gliner = _optional_object(folder, GLINER)
        own = _required_config(folder) if gliner is None else {}
        of_gliner2 = is_gliner2_config(own)
        if gliner is not None:
            self.config = encoder_config(gliner, _optional_object(folder, "config.json"))
        elif of_gliner2:
            self.config = gliner2_encoder(own, _optional_object(folder, ENCODER_CONFIG))
        else:
            self.config = text_model_config(own)
        self.generation_config = _optional_object(folder, "generation_config.json")
        self._files: dict[Path, SafetensorsFile] = {}
        try:
            tensors = self._open_single() if (folder / SINGLE).exists() else self._open_shards()
            if of_gliner2:
                self.config, tensors = gliner2_tensors(self.config, tensors)
            elif gliner is not None:
                tensors = encoder_tensors(tensors)
                self.config = with_vocabulary(self.config, gliner, tensors)
            plain = plain_tensors(tensors, self.config.get("model_type"))
            plain |= self._open_modules()
        except BaseException:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(plain)

    @property
    def fingerprint(self) -> str:
        """sha256 over what decides the weights: the config, and header, size and time of each file."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for path, file in sorted(self._files.items()):
            size, mtime_ns = file.stamp
            digest.update(f"\n{path.name} {file.header_sha256} {size} {mtime_ns}".encode())
        return digest.hexdigest()

    def info(self, name: str) -> TensorInfo:
        """The tensor of that name, or CorruptFile. Some checkpoints (openai-community/gpt2) leave out the
        first part of all names, so a name is also looked for without it."""
        found = self.tensors.get(name) or self.tensors.get(name.partition(".")[2])
        if found is None:
            raise CorruptFile(
                f"the checkpoint {self.folder.name} has no tensor {name!r} among its {len(self.tensors):,}: "
                "its weights do not belong to its config.json"
            )
        return found

    def input_order(self, name: str) -> None:
        """Inputs are in their own order."""

    def float32(self, name: str) -> NDArray[np.float32]:
        """A copy of the tensor in its own shape; F16 and BF16 are widened, others UnsupportedModel."""
        info = self.info(name)
        return self._files[info.file].float32(info)

    def row_dtype(self, name: str) -> str:
        """The stored type. Raises UnsupportedModel where it is not one that read_rows may give."""
        info = self.info(name)
        element_bytes(info)
        return info.dtype

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension as stored, into the start of `out`, a flat view of bytes.

        Raises CorruptFile where the file was cut short after it was opened.
        """
        info = self.info(name)
        row_bytes = info.nbytes // max(info.shape[0], 1)
        part = out.cast("B")[: row_count * row_bytes]
        if part.nbytes != row_count * row_bytes:
            raise ValueError(
                f"{row_count} rows of {name} need {row_count * row_bytes} bytes, not {out.nbytes}"
            )
        self._files[info.file].read_into(info, start_row * row_bytes, part)

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Bytes of a tensor as stored, of any element type, into `out`, a flat view of bytes."""
        info = self.tensors[name]
        self._files[info.file].read_into(info, start, out)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _open_single(self) -> Mapping[str, TensorInfo]:
        return self._open(SINGLE).tensors

    def _open_modules(self) -> dict[str, TensorInfo]:
        """Tensors of the Dense modules of sentence-transformers, by the folder and their name in it."""
        return {
            f"{module.path}.{name}": info
            for module in read_modules(self.folder)
            if module.kind == "Dense"
            for name, info in self._open(f"{module.path}/{SINGLE}").tensors.items()
        }

    def _open_shards(self) -> Mapping[str, TensorInfo]:
        places = _weight_map(self.folder)
        tensors: dict[str, TensorInfo] = {}
        shards = {shard: self._open(shard) for shard in sorted(set(places.values()))}
        for name, shard in places.items():
            info = shards[shard].tensors.get(name)
            if info is None:
                raise CorruptFile(
                    f"{INDEX} says that {shard} holds {name!r}, it does not: fetch both files again"
                )
            tensors[name] = info
        return tensors

    def _open(self, name: str) -> SafetensorsFile:
        path = confined(self.folder, name)
        try:
            file = SafetensorsFile(path)
        except FileNotFoundError:
            raise CorruptFile(
                f"{name} is missing in {self.folder.name}: fetch the whole model again"
            ) from None
        except OSError as error:
            raise CorruptFile(f"{name[:200]} cannot be read: {error.strerror}") from None
        self._files[path] = file
        return file


def open_checkpoint(path: Path) -> CheckpointReader:
    """Opens the checkpoint in a folder, or the GGUF file (any part of one that was split).

    Raises ModelNotFound (no such folder, no model in it), CorruptFile, UnsupportedModel.
    """
    if path.suffix == ".gguf" and not path.is_dir():
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise ModelNotFound(
            f"{str(path)!r} is not a folder: give the folder that holds config.json, or a .gguf file"
        )
    checkpoint = Checkpoint(path.resolve())
    try:
        quantization = quantization_of(checkpoint.config)
        return checkpoint if quantization is None else QuantizedCheckpoint(checkpoint, quantization)
    except BaseException:
        checkpoint.close()
        raise


def is_complete(folder: Path) -> bool:
    """Whether all files that open_checkpoint needs are there (their content is not looked at)."""
    if not any((folder / name).exists() for name in CONFIGS):
        return False
    if (folder / SINGLE).exists():
        return True
    if not (folder / INDEX).exists():
        return False
    return all(confined(folder, shard).exists() for shard in set(_weight_map(folder).values()))


def refuse_adapter(folder: Path) -> None:
    """Raises UnsupportedModel for an adapter (PEFT), which is a part of a model, or would change the model in
    whose folder it lies."""
    adapter = _optional_object(folder, "adapter_config.json")
    if adapter is None:
        return
    base = adapter.get("base_model_name_or_path")
    of = f" of {base[:120]!r}" if isinstance(base, str) else ""
    raise UnsupportedModel(
        f"{folder.name} holds adapter_config.json: it is an adapter{of}, not a whole model, and adapters are"
        " not supported: merge it into its model (merge_and_unload of peft, save_pretrained) and load it, or"
        " remove the file where the folder's own weights are a whole model"
    )


def _required_config(folder: Path) -> dict[str, object]:
    config = _optional_object(folder, "config.json")
    if config is not None:
        return config
    names = sorted(path.name for path in folder.iterdir())
    gguf = next((name for name in names if name.endswith(".gguf")), None)
    if gguf is not None:
        raise ModelNotFound(
            f"{folder.name} has no config.json but GGUF files: give the path of one, as {gguf}"
        )
    raise ModelNotFound(f"{folder.name} has no config.json: give the folder of a Hugging Face checkpoint")


def _optional_object(folder: Path, name: str) -> dict[str, object] | None:
    try:
        return strict_json.read_object(confined(folder, name), MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return None


def _weight_map(folder: Path) -> dict[str, str]:
    try:
        index = strict_json.read_object(confined(folder, INDEX), MAX_INDEX_BYTES)
    except FileNotFoundError:
        others = [path.name for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth"}]
        hint = f" ({others[0]} may run code when it is loaded and is never read)" if others else ""
        raise ModelNotFound(
            f"{folder.name} has neither {SINGLE} nor {INDEX}{hint}: convert the weights to safetensors"
        ) from None
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CorruptFile(f"{INDEX} has no weight_map of tensor names to file names: fetch it again")
    for name, shard in cast("dict[str, object]", places).items():
        if not isinstance(shard, str):
            raise CorruptFile(f"{INDEX} gives no file name for {name[:200]!r}: fetch it again")
    return cast("dict[str, str]", places)
