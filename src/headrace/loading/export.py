"""A model as a new GGUF file or folder: tensors in another type, with its config, tokenizer and template."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import UnsupportedModel
from headrace.loading.model_card import license
from headrace.loading.text_assets import load_text_assets
from headrace.loading.weight_specs import TABLES, with_finer_tables
from headrace.models.config_classes import complete
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import Model, find_model
from headrace.models.rope import Rope, read_rope
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.checkpoint import INDEX
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.gguf.config_keys import metadata_of, sampling_keys
from headrace.weights.gguf.export import FILE_TYPES, GgufExport
from headrace.weights.gguf.families import by_model_type
from headrace.weights.gguf.rope_keys import ATTENTION_FACTOR, ROPE_FACTORS, long_rope_factors, rope_table
from headrace.weights.gguf.tokenizer_export import tokenizer_keys
from headrace.weights.gguf.writer import write_gguf
from headrace.weights.gliner2_head import is_gliner2
from headrace.weights.gliner_head import is_gliner
from headrace.weights.head import read_head
from headrace.weights.input_rules import COLBERT
from headrace.weights.modules import read_dense, read_modules
from headrace.weights.packing.packed_weights import WeightSpec
from headrace.weights.pooling import Pooling, read_pooling
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.safetensors.export import SafetensorsExport
from headrace.weights.safetensors.writer import write_safetensors
from headrace.weights.span_head import has_span_head
from headrace.weights.tagger_head import TENSORS
from headrace.weights.tensor_output import ClassReport, Converter, TensorOutput, report
from headrace.weights.tensor_roles import class_of

Progress = Callable[[int, int], None]
_CARRIED = (".json", ".jinja", ".txt", ".md", ".model")
# Fields that only configs made from GGUF files have, and what they are for matrices as no folder has them.
_FORMS_OF_GGUF = {"transposed_weights": False, "split_kv_b": True, "separate_experts": True}
_DTYPES = {"f32": "float32", "f16": "float16"}  # as config.json says it; else bfloat16


class Export(Struct, frozen=True, kw_only=True):
    """An open checkpoint found at `path`, and the type that its weights shall have. Where they are
    `calibrated`, `ready` are the rows of matrices by name that were rounded on a text; `types` those that
    have another type in GGUF; `sparse` a format of compressed-tensors for matrices with many zeros."""

    checkpoint: CheckpointReader
    path: Path
    name: str
    type: str
    threads: int
    calibrated: bool = False
    ready: Mapping[str, Bytes] = {}
    types: Mapping[str, str] = {}
    sparse: str = ""

    def gguf(self, converter: Converter) -> GgufExport:
        """How it becomes GGUF."""
        model = self._model()
        return GgufExport(
            source=self.checkpoint,
            architecture=by_model_type(model.model_type),
            type=self.type,
            head_dim=model.config.head_dim if isinstance(model.config, DecoderConfig) else 0,
            transposed=isinstance(model.config, DecoderConfig) and model.config.transposed,
            converter=converter,
            ready=self.ready,
            types=self.types,
        )

    def folder(self, converter: Converter) -> SafetensorsExport:
        """How it becomes a folder."""
        return SafetensorsExport(
            source=self.checkpoint,
            type=self.type,
            converter=converter,
            calibrated=self.calibrated,
            ready=self.ready,
            tables=self._tables(),
            sparse=self.sparse,
        )

    def _tables(self) -> Mapping[str, str]:
        """The format of each table among rotated int4 matrices, by the rule of loading."""
        matrices = {
            name: info.shape for name, info in self.checkpoint.tensors.items() if len(info.shape) == 2
        }
        wanted = tuple(WeightSpec(name, *shape, "int4") for name, shape in matrices.items())
        if self.type != "int4" or any(min(shape) < 1 for shape in matrices.values()):
            return {}
        return {one.name: one.format for one in with_finer_tables(wanted) if class_of(one.name, 2) in TABLES}

    def to_gguf(self, out: Path, progress: Progress) -> list[ClassReport]:
        """Writes a temporary GGUF file next to `out`, then renames it; nothing is left where that fails."""
        self._check_pooling()
        converter, model = Converter(self.threads), self._model()
        export = self.gguf(converter)
        outputs = [*self._rope_tensors(model), *export.outputs()]
        metadata = self._gguf_metadata()
        total = sum(output.nbytes for output in outputs)
        temporary = out.with_name(f".{out.name}.{os.getpid()}.partial")
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                write_gguf(file, metadata, outputs, lambda done: progress(done, total))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
        return report(self.checkpoint, outputs, converter.losses, self.type)

    def to_folder(self, out: Path, progress: Progress) -> list[ClassReport]:
        """Writes a temporary folder next to `out`, then renames it; nothing is left where that fails."""
        converter, model = Converter(self.threads), self._model()
        if is_gliner(self.path) or is_gliner2(self.path):
            raise UnsupportedModel(
                f"{self.path.name} is a GLiNER checkpoint with its head among the weights, which is not"
                " written in other types: choose the type when it is loaded (quantization)"
            )
        if any(self.checkpoint.config.get(field) is form for field, form in _FORMS_OF_GGUF.items()):
            raise UnsupportedModel(
                f"{model.model_type} from GGUF has its matrices in a form that no folder has (turned, or in"
                " parts): start from its folder, or write GGUF"
            )
        export = self.folder(converter)
        modules = tuple(f"{module.path}." for module in read_dense(self.path)) if self.path.is_dir() else ()
        # Dense modules have folders of their own, which are copied.
        outputs = [output for output in export.outputs() if not output.name.startswith(modules)]
        total = sum(output.nbytes for output in outputs)
        temporary = out.with_name(f".{out.name}.{os.getpid()}.partial")
        temporary.mkdir(parents=True)
        try:
            self._write_text_files(temporary, model)
            quantization = export.sparsity_config(outputs) if self.sparse else export.quantization_config()
            self._write_config(temporary, quantization)
            with (temporary / "model.safetensors").open("xb") as file:
                write_safetensors(file, outputs, lambda done: progress(done, total))
                file.flush()
                os.fsync(file.fileno())
            if out.is_dir() and not out.is_symlink():
                shutil.rmtree(out)
            else:
                out.unlink(missing_ok=True)
            temporary.replace(out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return report(self.checkpoint, outputs, converter.losses, self.type)

    def _model(self) -> Model:
        """The model with its head, as the files say."""
        config, is_folder = self.checkpoint.config, self.path.is_dir()
        dense = read_dense(self.path) if is_folder else ()
        return find_model(config, head=read_head(self.path, config), dense=dense)

    def _check_pooling(self) -> None:
        """A GGUF file says that an encoder takes the mean, and nothing else of what follows it."""
        head = read_head(self.path, self.checkpoint.config)
        if head is not None or (self.path.is_dir() and read_dense(self.path)):
            what = "Dense modules" if head is None else f"a head ({head.kind})"
            raise UnsupportedModel(
                f"{self.path.name} has {what}, which a GGUF file cannot hold: write a folder with safetensors"
                " instead"
            )
        pooling = read_pooling(self.path) if self.path.is_dir() else None
        if pooling is None or pooling == Pooling("mean"):
            return
        what = (
            "finds entities with a head"
            if has_span_head(self.path)
            else f"ends with the pooling {pooling.kind!r}"
        )
        raise UnsupportedModel(
            f"{self.path.name} {what}, which a GGUF file cannot hold: write a folder with safetensors instead"
        )

    def _gguf_metadata(self) -> dict[str, object]:
        kind: dict[str, object] = {
            "general.file_type": FILE_TYPES[self.type],
            "general.quantization_version": 2,
        }
        old = self.checkpoint.metadata
        if old is not None:
            dropped = ("split.", "general.alignment")
            kept = {key: value for key, value in old.items() if not key.startswith(dropped)}
            return kept | kind
        tokenizer, template = load_text_assets(self.path, None)
        config = complete(self.checkpoint.config)
        model = find_model(config)
        architecture, rope = by_model_type(model.model_type), _rope_of(model)
        keys = metadata_of(config, architecture)
        if rope is not None and long_rope_factors(config, 2 * len(rope.inv_freq)):
            keys[f"{architecture.name}.{ATTENTION_FACTOR}"] = rope.scale
        keys |= {"general.type": "model", "general.name": self.name} | kind
        own_license = license(self.path, None)
        if own_license is not None:
            keys["general.license"] = own_license
        keys |= tokenizer_keys(tokenizer, model.config.vocabulary)
        return keys | _template_keys(template) | sampling_keys(self.checkpoint.generation_config or {})

    def _rope_tensors(self, model: Model) -> list[TensorOutput]:
        """Divisors of the rotary frequencies, which GGUF keeps as tensors."""
        config, rope = complete(self.checkpoint.config), _rope_of(model)
        if rope is None:
            return []
        table = rope_table(config)
        if table.get("rope_type", table.get("type")) in ("llama3", "divided"):
            theta = table.get("rope_theta", config.get("rope_theta", 10000.0))
            plain = read_rope({"rope_theta": theta}, 2 * len(rope.inv_freq))
            return [_vector(ROPE_FACTORS, (plain.inv_freq / rope.inv_freq).astype(np.float32))]
        factors = long_rope_factors(config, 2 * len(rope.inv_freq))
        return [_vector(name, values) for name, values in factors.items()]

    def _write_text_files(self, folder: Path, model: Model) -> None:
        if self.checkpoint.metadata is None:
            for file in self.path.iterdir():
                if (file.suffix in _CARRIED or file.name.startswith("LICENSE")) and file.name != INDEX:
                    shutil.copyfile(file, folder / file.name)
            self._copy_head(folder)
            return
        tokenizer, template = load_text_assets(self.path, self.checkpoint.metadata)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        settings = _token_settings(tokenizer, template)
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False))
        generation = dict(self.checkpoint.generation_config or {})
        generation["eos_token_id"] = sorted(tokenizer.eos_ids)
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))

    def _copy_head(self, folder: Path) -> None:
        """What follows an encoder: the modules of sentence-transformers, marks of ColBERT, the head of a
        tagger."""
        modules = [
            self.path / module.path / name
            for module in read_modules(self.path)
            for name in ("config.json", "model.safetensors")
            if module.path
        ]
        for file in (*modules, self.path / COLBERT, self.path / TENSORS):
            if file.is_file():
                target = folder / file.relative_to(self.path)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, target)

    def _write_config(self, folder: Path, quantization: Mapping[str, object] | None) -> None:
        config = dict(self.checkpoint.config)
        config.pop("torch_dtype", None)
        config.pop("quantization_config", None)
        config["dtype"] = _DTYPES.get(self.type, "bfloat16")
        if self.checkpoint.metadata is not None:
            _check_rope(config)
        if quantization is not None:
            config["quantization_config"] = dict(quantization)
        (folder / "config.json").write_text(json.dumps(config, indent=2))


def _rope_of(model: Model) -> Rope | None:
    """The rotation of the first layer, None where it has none."""
    return model.config.ropes[0] if isinstance(model.config, DecoderConfig) else None


def _vector(name: str, values: np.ndarray) -> TensorOutput:
    return TensorOutput(name, "F32", values.shape, values.nbytes, (), lambda: iter([values.view(np.uint8)]))


def _template_keys(template: ChatTemplate | None) -> dict[str, object]:
    if template is None:
        return {}
    keys: dict[str, object] = {"tokenizer.chat_template": template.source}
    if template.tool_source != template.source:
        keys["tokenizer.chat_template.tool_use"] = template.tool_source
        keys["tokenizer.chat_templates"] = ["tool_use"]
    return keys


def _token_settings(tokenizer: Tokenizer, template: ChatTemplate | None) -> dict[str, object]:
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.bos_id is not None:
        settings["bos_token"] = tokenizer.pieces.token_of(tokenizer.bos_id)
        settings["add_bos_token"] = tokenizer.encode("a")[:1] == [tokenizer.bos_id]
    if tokenizer.eos_ids:
        settings["eos_token"] = tokenizer.pieces.token_of(min(tokenizer.eos_ids))
    if template is not None and template.tool_source != template.source:
        sources = {"default": template.source, "tool_use": template.tool_source}
        settings["chat_template"] = [{"name": name, "template": text} for name, text in sources.items()]
    elif template is not None:
        settings["chat_template"] = template.source
    return settings


def _check_rope(config: Mapping[str, object]) -> None:
    rope = cast("Mapping[str, object]", config.get("rope_parameters") or {})
    if rope.get("rope_type") == "divided":
        raise UnsupportedModel(
            "this GGUF holds divisors of its rotary frequencies, for which config.json has no field: start "
            "from the model's folder, or write GGUF"
        )
