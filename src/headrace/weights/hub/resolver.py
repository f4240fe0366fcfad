"""From a model's name to a folder or file: shipped models, local ones, and the hub with its cache."""

from __future__ import annotations

import dataclasses
import errno
import re
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.config.names import suggestion
from headrace.errors import ModelNotFound, UsageError
from headrace.weights.checkpoint import CONFIGS, is_complete, refuse_adapter
from headrace.weights.gliner2 import ENCODER_CONFIG
from headrace.weights.gliner2_head import is_gliner2
from headrace.weights.hub.bundled import list_bundled
from headrace.weights.hub.download_progress import bar_class
from headrace.weights.modules import read_modules

FILE_SUFFIX = ".gguf"  # of a model that is one file
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_SHIPPED_NAME = re.compile(_WORD)
_HUB_NAME = re.compile(f"{_WORD}/{_WORD}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,254}")
# Never *.bin, *.pt or *.py: nothing that is fetched can run. Only the top folder, and those that its files
# name: others hold copies of the weights for other programs.
_FETCHED = ["model*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
_NOT_FETCHED = ["*/*"]
_OF_MODULES = ("config.json", "model.safetensors")


class LocalModel(Struct, frozen=True):
    """A model that needs no network. `revision` is the hub's commit; None for shipped models."""

    name: str
    source: str  # "shipped" or "hub"
    folder: Path
    size_bytes: int
    revision: str | None


def resolve(name: str | Path, *, offline: bool | None = None, revision: str | None = None) -> Path:
    """The folder or .gguf file of a model: a path, the name of a shipped model, or org/name on the hub.

    What looks like a path (a Path; ./x, ../x, /x, ~/x, a/b/c, a/, x.gguf) is only a path, a/b is only on
    the hub, and a word is a shipped model or else a folder. A hub model is fetched when it is not in the
    cache; `offline=True` forbids it, None leaves that to HF_HUB_OFFLINE.
    `revision` is a branch, tag or commit of a hub model. Raises ModelNotFound, UsageError.
    """
    if isinstance(name, Path) or _looks_like_path(name):
        _refuse_revision(name, revision)
        return _local(name)
    if _SHIPPED_NAME.fullmatch(name):
        _refuse_revision(name, revision)
        shipped = list_bundled()
        if name in shipped:
            return shipped[name]
        if Path(name).is_dir():
            return Path(name)
        raise ModelNotFound(
            f"no model {name!r} ships with headrace{_nearest_here(name)}; {_what_is_here()}: use one of "
            "these, org/name of the hub, or a folder with config.json and safetensors"
        )
    _check_hub_name(name, revision)
    cached = _cached(name, revision)
    if cached is not None:
        return cached
    if offline:
        raise _unreachable(name, "offline mode")
    return _download(name, revision, None)


def pull(
    name: str, progress: Callable[[int, int], None] | None = None, *, revision: str | None = None
) -> Path:
    """Fetches a hub model, or what changed of it, and gives its folder.

    `progress` gets (bytes so far, bytes known of), from several threads but never two at once.
    """
    check_pullable(name, revision)
    return _download(name, revision, progress)


def check_pullable(name: str, revision: str | None = None) -> None:
    """Refuse what cannot be the name of a hub model: UsageError, ModelNotFound."""
    if _looks_like_path(name) or "/" not in name:
        raise UsageError(f"{name!r} is no hub model, there is nothing to pull: hub models are named org/name")
    _check_hub_name(name, revision)


def list_local() -> list[LocalModel]:
    """Shipped models, then the complete ones in the hub's cache."""
    models = [
        LocalModel(name, "shipped", folder, sum(path.stat().st_size for path in folder.iterdir()), None)
        for name, folder in list_bundled().items()
    ]
    for repo in _cached_models(_scan()):
        for cached in sorted(repo.revisions, key=lambda cached: cached.commit_hash):
            folder = cached.snapshot_path
            if is_complete(folder):
                models.append(
                    LocalModel(repo.repo_id, "hub", folder, cached.size_on_disk, cached.commit_hash)
                )
    return models


def remove(name: str) -> int:
    """Deletes a hub model from the cache, all its revisions; gives the bytes freed.

    Raises UsageError for a shipped model or a path, ModelNotFound.
    """
    if _looks_like_path(name):
        raise UsageError(f"{name!r} is a path of yours: headrace does not delete it")
    if name in list_bundled():
        raise UsageError(f"{name!r} ships inside the package and goes only with it")
    cache = _scan()
    mine = frozenset(repo for repo in _cached_models(cache) if repo.repo_id == name)
    if not mine:
        raise ModelNotFound(f"there is no model {name!r} to remove; {_what_is_here()}")
    # The client finds revisions by commit alone, and a copied repository has the commits of its original.
    deletion = dataclasses.replace(cache, repos=mine).delete_revisions(
        *(cached.commit_hash for repo in mine for cached in repo.revisions)
    )
    deletion.execute()
    return deletion.expected_freed_size


def _looks_like_path(name: str) -> bool:
    marked = name.startswith((".", "/", "~")) or name.endswith(("/", FILE_SUFFIX)) or "\\" in name
    return marked or name.count("/") > 1


def _local(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == FILE_SUFFIX):
        return path
    if path.is_file():
        raise ModelNotFound(
            f"{str(name)!r} is a file: give a .gguf file, or the folder that holds config.json and "
            "safetensors, to which other weights are to be converted"
        )
    kind = "file" if path.suffix == FILE_SUFFIX else "folder"
    raise ModelNotFound(
        f"there is no {kind} {str(name)!r}: check the path, or give a name; {_what_is_here()}"
    )


def _refuse_revision(name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise UsageError(f"{str(name)!r} is not a hub model and has no revision {revision!r}: leave it out")


def _check_hub_name(name: str, revision: str | None) -> None:
    if _HUB_NAME.fullmatch(name) is None or ".." in name or "--" in name:
        raise ModelNotFound(
            f"{name[:200]!r} is neither a shipped model nor org/name; {_what_is_here()}; "
            "a folder is written ./folder"
        )
    if revision is not None and (_REVISION.fullmatch(revision) is None or ".." in revision):
        raise UsageError(f"{revision[:200]!r} is no revision: give a branch, a tag or a commit")


def _cached(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    for file in CONFIGS:
        config = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(config, str) and is_complete(Path(config).parent):
            return Path(config).parent
    return None


def _download(name: str, revision: str | None, progress: Callable[[int, int], None] | None) -> Path:
    folder = _fetched(name, revision, progress, allow_patterns=_FETCHED, ignore_patterns=_NOT_FETCHED)
    if not is_complete(folder):
        refuse_adapter(folder)
        raise ModelNotFound(
            f"the hub's model {name!r} has no config.json or no safetensors weights: use another"
        )
    further = _further_files(folder)
    if further:  # of the commit that was fetched, whose name is that of its folder
        folder = _fetched(name, folder.name, progress, allow_patterns=further)
    return folder


def _further_files(folder: Path) -> list[str]:
    """Files in folders of their own that a model's files name, as patterns: of modules of
    sentence-transformers, and of the encoder of GLiNER 2. Raises CorruptFile."""
    found = [ENCODER_CONFIG] if is_gliner2(folder) else []
    for module in read_modules(folder):
        if module.path:
            found += [f"{escape(module.path)}/{file}" for file in _OF_MODULES]
    return found


def _fetched(
    name: str, revision: str | None, progress: Callable[[int, int], None] | None, **patterns: list[str]
) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    client: Any = huggingface_hub
    bar = bar_class(progress or (lambda done, total: None))
    try:
        return Path(client.snapshot_download(name, revision=revision, tqdm_class=bar, **patterns))
    except RepositoryNotFoundError:
        raise ModelNotFound(
            f"the hub has no model {name!r} or shows it only after a login: check the name or set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFound(f"the hub's model {name!r} has no revision {revision!r}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise ModelNotFound(f"{name!r} cannot be stored in the hub's cache: {error.strerror}") from error
        raise _unreachable(name, type(error.__cause__ or error).__name__) from error
    except Exception as error:  # the HTTP library's own errors, which differ between its versions
        raise _unreachable(name, type(error).__name__) from error


def _unreachable(name: str, cause: str) -> ModelNotFound:
    if Path(name).is_dir():
        return ModelNotFound(f"the hub is out of reach ({cause}) for {name!r}: the folder here is ./{name}")
    return ModelNotFound(
        f"{name!r} is not on this machine and the hub is out of reach ({cause}); {_what_is_here()}: "
        f"use one of these, run `headrace pull {name}` when online, or give a folder with config.json and "
        "safetensors"
    )


def _nearest_here(name: str) -> str:
    return suggestion(name, [model.name for model in list_local()]).removesuffix("?")


def _what_is_here() -> str:
    names = dict.fromkeys(model.name for model in list_local())
    return f"here are {', '.join(names)}" if names else "no model is here"


def _scan() -> Any:
    """The hub's cache (huggingface_hub.HFCacheInfo), None where there is none."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None


def _cached_models(cache: Any) -> list[Any]:
    """Its models (huggingface_hub.CachedRepoInfo), by name."""
    models = [] if cache is None else [repo for repo in cache.repos if repo.repo_type == "model"]
    return sorted(models, key=lambda repo: repo.repo_id)
