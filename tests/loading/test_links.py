"""Files of a model's folder that are links to files elsewhere, and names that no system has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.errors import CorruptFile
from headrace.loading.text_assets import load_text_assets
from headrace.weights.hub.bundled import list_bundled
from headrace.weights.modules import module_config, read_modules


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
        *("chat_template.json", "additional_chat_templates/more.jinja"),
    ],
)
def test_text_files_that_are_links_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder, secret = tmp_path / "model", tmp_path / "secret"
    shutil.copytree(list_bundled()["mini"], folder)
    load_text_assets(folder, None)
    secret.write_text("{}")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(CorruptFile, match="link out of the model's folder"):
        load_text_assets(folder, None)


def test_links_inside_of_the_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(list_bundled()["mini"], folder)
    (folder / "tokenizer.json").rename(folder / "tokenizer-1.json")
    (folder / "tokenizer.json").symlink_to("tokenizer-1.json")
    tokenizer, _ = load_text_assets(folder, None)
    assert tokenizer.encode("ls")


@pytest.mark.parametrize("path", ["." * 5000, "a/" * 3000, "ä" * 200])
def test_paths_of_modules_that_are_too_long_are_refused_by_name(tmp_path: Path, path: str) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": path, "type": "sentence_transformers.models.Pooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CorruptFile, match="more than 255 bytes"):
        module_config(tmp_path, read_modules(tmp_path)[1])
