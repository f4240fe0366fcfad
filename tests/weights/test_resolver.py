"""From names to folders, with and without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

from headrace.errors import HeadraceError, ModelNotFound, UsageError
from headrace.weights.checkpoint import SINGLE
from headrace.weights.hub import bundled as shipped
from headrace.weights.hub import resolver as hub

COMMIT = "c" * 40


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / SINGLE).write_bytes(b"12345678")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache; asking the network fails the test."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))

    def no_network(*args: Any, **options: Any) -> str:
        raise AssertionError("asked the network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    return folder


@pytest.fixture
def local_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shipped"
    make_model(folder / "tiny")
    (folder / "not-a-model").mkdir()
    monkeypatch.setattr(shipped, "BUNDLED_FOLDER", folder)
    return folder


def put_in_cache(cache: Path, name: str = "org/name", commit: str = COMMIT, ref: str = "main") -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    folder = make_model(repository / "snapshots" / commit)
    for path in folder.iterdir():
        blob = repository / "blobs" / f"{commit}-{path.name}"
        path.rename(blob)
        path.symlink_to(f"../../blobs/{blob.name}")
    return folder


def test_a_path_is_only_a_path(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    put_in_cache(cache, "a/b")
    make_model(tmp_path / "a" / "b")
    for name in (
        "./a/b",
        "a/b/",
        "../" + tmp_path.name + "/a/b",
        "~/a/b",
        str(tmp_path / "a" / "b"),
        Path("a/b"),
    ):
        assert hub.resolve(name).resolve() == tmp_path / "a" / "b"
    assert hub.resolve("a/b") == cache / "models--a--b" / "snapshots" / COMMIT
    with pytest.raises(ModelNotFound, match=r"no folder '\./nothing'"):
        hub.resolve("./nothing")
    with pytest.raises(ModelNotFound, match="is a file"):
        hub.resolve(f"./a/b/{SINGLE}")
    (tmp_path / "llama2.bin").write_bytes(bytes(28))
    with pytest.raises(ModelNotFound, match="other weights are to be converted"):
        hub.resolve("./llama2.bin")
    with pytest.raises(UsageError, match="no revision 'v1'"):
        hub.resolve("./a/b", revision="v1")


def test_a_word_is_shipped_or_a_folder(
    cache: Path, local_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "mine")
    make_model(tmp_path / "tiny")
    assert hub.resolve("mine") == Path("mine")
    assert hub.resolve("tiny") == local_models / "tiny"
    make_model(tmp_path / "org" / "name")
    with pytest.raises(ModelNotFound, match=r"the folder here is \./org/name"):
        hub.resolve("org/name", offline=True)


def test_shipped_models(cache: Path, local_models: Path) -> None:
    assert hub.resolve("tiny") == local_models / "tiny"
    with pytest.raises(
        ModelNotFound, match=r"no model 'huge' ships with headrace; here are tiny: .* a folder"
    ):
        hub.resolve("huge")
    with pytest.raises(UsageError, match="no revision"):
        hub.resolve("tiny", revision="main")
    with pytest.raises(UsageError, match="ships inside the package"):
        hub.remove("tiny")


NO_NAMES = [
    *(
        "",
        "a/..",
        "../a",
        "a/../b",
        "a\0b",
        "a\0/b",
        "a\nb",
        "org/name\n",
        "org/na me",
        "org/..name",
        "org/a--b",
    ),
    *(
        "-a/b",
        "x" * 300,
        "org/" + "x" * 300,
        "C:\\models",
        "https://huggingface.co/org/name",
        "org/name@main",
    ),
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_are_no_names(cache: Path, local_models: Path, name: str) -> None:
    with pytest.raises(ModelNotFound):
        hub.resolve(name, offline=True)
    with pytest.raises(HeadraceError):
        hub.pull(name)
    with pytest.raises(HeadraceError):
        hub.remove(name)
    assert (local_models / "tiny" / SINGLE).exists()


def test_a_cached_model_needs_no_network(cache: Path) -> None:
    main = put_in_cache(cache)
    tagged = put_in_cache(cache, commit="d" * 40, ref="v1")
    assert hub.resolve("org/name") == hub.resolve("org/name", offline=True) == main
    assert hub.resolve("org/name", revision="v1") == hub.resolve("org/name", revision="d" * 40) == tagged


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a..b", "", "-x", "a\0b", "a b"])
def test_revisions_that_are_no_revisions(cache: Path, revision: str) -> None:
    put_in_cache(cache)
    with pytest.raises(UsageError, match="is no revision"):
        hub.resolve("org/name", revision=revision)


def test_offline_says_what_to_do(cache: Path, local_models: Path) -> None:
    put_in_cache(cache, "org/other")
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve("org/name", offline=True)
    for fragment in ("'org/name'", "offline mode", "tiny, org/other", "headrace pull org/name", "folder"):
        assert fragment in caught.value.message


def test_an_incomplete_download_is_no_model(cache: Path) -> None:
    folder = put_in_cache(cache)
    (folder / SINGLE).unlink()
    with pytest.raises(ModelNotFound, match="offline mode"):
        hub.resolve("org/name", offline=True)
    assert [model.name for model in hub.list_local() if model.source == "hub"] == []


@pytest.mark.parametrize(
    ("error", "fragment"),
    [
        (lambda response: LocalEntryNotFoundError("no"), "out of reach"),
        (lambda response: ConnectionError("no"), "out of reach .ConnectionError"),
        (lambda response: RuntimeError("no"), "out of reach .RuntimeError"),
        (lambda response: OSError(28, "No space left on device"), "No space left on device"),
        (
            lambda response: RepositoryNotFoundError("no", response=response),
            "the hub has no model 'org/name'",
        ),
        (lambda response: RevisionNotFoundError("no", response=response), "no revision 'v1'"),
    ],
)
def test_failed_downloads(cache: Path, monkeypatch: pytest.MonkeyPatch, error: Any, fragment: str) -> None:
    class Response:
        headers: dict[str, str] = {}  # noqa: RUF012
        request = None

    def fail(*args: Any, **options: Any) -> str:
        raise error(Response())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFound, match=fragment):
        hub.resolve("org/name", revision="v1")


def test_unreachable_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself, offline by its own switch."""
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    with pytest.raises(ModelNotFound, match="'org/name' is not on this machine and the hub is out of reach"):
        hub.resolve("org/name")


def test_download_takes_no_code_and_tells_progress(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"]
    wanted += ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    others = ["pytorch_model.bin", "model.pt", "modeling.py", "consolidated.safetensors", "README.md"]
    others += ["onnx/config.json", "original/model.safetensors"]
    fetched: list[str] = []
    seen: list[tuple[int, int]] = []

    def download(
        name: str, *, revision: str, allow_patterns: Any, ignore_patterns: Any, tqdm_class: Any
    ) -> str:
        assert (name, revision) == ("org/name", "v1")
        from huggingface_hub.utils import filter_repo_objects

        fetched.extend(
            filter_repo_objects(
                others + wanted, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
        )
        received = tqdm_class(total=0, unit="B", unit_scale=True, desc="Downloading bytes", initial=0)
        written = tqdm_class(total=0, unit="B", unit_scale=True, desc="Reconstructing")
        with tqdm_class(total=len(fetched), desc="Fetching") as files:
            received.total = 125
            written.total = 100
            received.update(40)
            written.update(30)
            files.update(1)
            written.update(70)
        received.close()
        written.set_description("done")
        written.close()
        return str(put_in_cache(cache))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert hub.pull("org/name", lambda *step: seen.append(step), revision="v1").name == COMMIT
    assert fetched == wanted
    assert seen == [(40, 100), (40, 100), (100, 100)]


def test_download_takes_the_folders_that_files_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of modules of sentence-transformers, and of the encoder of GLiNER 2; no others, and no code."""
    there = [
        "config.json",
        "modules.json",
        "model.safetensors",
        "1_Pooling/config.json",
        "2_Dense/config.json",
    ]
    there += ["2_Dense/model.safetensors", "2_Dense/pytorch_model.bin", "onnx/config.json", "x/config.json"]
    there += ["encoder_config/config.json"]
    asked: list[tuple[str | None, list[str]]] = []

    def download(name: str, *, revision: str | None, tqdm_class: Any, **patterns: Any) -> str:
        from huggingface_hub.utils import filter_repo_objects

        asked.append((revision, list(filter_repo_objects(there, **patterns))))
        return str(folder)

    folder = put_in_cache(cache)
    modules = [("transformers.Transformer", ""), ("models.Pooling", "1_Pooling"), ("models.Dense", "2_Dense")]
    listed = [{"type": kind, "path": path} for kind, path in [*modules, ("models.Normalize", "*")]]
    (folder / "modules.json").write_text(json.dumps(listed))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub.pull("org/name", lambda *step: None)
    assert asked == [(None, there[:3]), (COMMIT, there[3:6])]

    (folder / "modules.json").unlink()
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"model_type": "extractor"}')
    hub.pull("org/name", lambda *step: None)
    assert asked[2:] == [(None, there[:3]), (COMMIT, there[-1:])]


def test_download_without_weights(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(tmp_path))
    with pytest.raises(ModelNotFound, match="no safetensors weights"):
        hub.resolve("org/name")


def test_list_and_remove(cache: Path, local_models: Path) -> None:
    put_in_cache(cache)
    put_in_cache(cache, commit="d" * 40, ref="v1")
    put_in_cache(cache, "org/other")
    shutil.copytree(cache / "models--org--name", cache / "datasets--org--name", symlinks=True)
    listed = [(model.name, model.source, model.size_bytes, model.revision) for model in hub.list_local()]
    assert listed == [
        ("tiny", "shipped", 10, None),
        ("org/name", "hub", 10, "c" * 40),
        ("org/name", "hub", 10, "d" * 40),
        ("org/other", "hub", 10, "c" * 40),
    ]
    assert hub.remove("org/name") == 20
    assert not (cache / "models--org--name").exists()
    assert (cache / "datasets--org--name").exists()
    assert [model.name for model in hub.list_local()] == ["tiny", "org/other"]
    with pytest.raises(ModelNotFound, match="no model 'org/name' to remove; here are tiny, org/other"):
        hub.remove("org/name")
    with pytest.raises(UsageError, match="path of yours"):
        hub.remove("./tiny")


def test_no_cache_at_all(cache: Path, local_models: Path) -> None:
    cache.rmdir()
    assert [model.name for model in hub.list_local()] == ["tiny"]
    shutil.rmtree(local_models)
    with pytest.raises(ModelNotFound, match="no model is here"):
        hub.resolve("org/name", offline=True)


def test_pulling_what_is_no_hub_model(cache: Path, local_models: Path) -> None:
    for name in ("tiny", "./tiny", "/x/y"):
        with pytest.raises(UsageError, match="nothing to pull"):
            hub.pull(name)
