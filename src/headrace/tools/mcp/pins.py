"""The tools that a person has approved, in headrace.lock: each server's identity, tools and list."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from headrace.config.mcp import McpSettings
from headrace.errors import UsageError
from headrace.struct_types import thread_safe
from headrace.tools.arguments import problem_of_schema
from headrace.tools.tool import Json, Standing
from headrace.tools.visible import visible

VERSION = 1
MAX_LOCK = 32 * 2**20
MAX_TOOLS = 512
MAX_DEFINITION = 2**16
MAX_NAME = 64
"""Characters of a merged name, as APIs of models take them."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_HASHED_FILE = 2**30


class PinnedTool(Struct, frozen=True):
    """A tool as it was approved; `sha256` is of its definition as canonical JSON."""

    sha256: str
    definition: Json


class PinnedServer(Struct, frozen=True, kw_only=True):
    """A server as it was approved; `list_sha256` is of the digests of all its tools, in order."""

    identity: Json
    list_sha256: str
    tools: dict[str, PinnedTool]


class Lock(Struct, frozen=True):
    """The whole file."""

    version: int = VERSION
    servers: dict[str, PinnedServer] = field(default_factory=dict[str, PinnedServer])


class ToolState(Struct, frozen=True):
    """How a tool of a server stands; `reason` is why it cannot be used, empty where it can."""

    name: str
    standing: Standing
    reason: str = ""


def digest(value: object) -> str:
    """SHA-256 of a value as canonical JSON: sorted keys, no white space."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def pinned(definition: Mapping[str, Any]) -> PinnedTool:
    """The pin of a tool as its server lists it; fields that models and this gateway do not read are left
    out."""
    kept = {key: definition[key] for key in _PINNED if definition.get(key) is not None}
    return PinnedTool(digest(kept), kept)


def pin_server(identity: Json, definitions: Sequence[Mapping[str, Any]]) -> PinnedServer:
    """The pin of a server that lists these tools."""
    tools = {str(one["name"]): pinned(one) for one in definitions}
    return PinnedServer(identity=identity, list_sha256=list_digest(tools), tools=tools)


def list_digest(tools: Mapping[str, PinnedTool]) -> str:
    """Of a whole list, in whatever order it came."""
    return digest([[name, tools[name].sha256] for name in sorted(tools)])


def identity_of(settings: McpSettings) -> Json:
    """What a server is besides its tools: a program by the contents of its files, or an address.

    OSError where the program is not there.
    """
    if settings.url is not None:
        address: Json = {"url": settings.url, "headers": sorted(settings.headers)}
        if settings.oauth is not None:  # names of secrets, and who gets them
            address["oauth"] = {key: value for key, value in settings.oauth.items() if key != "port"}
        return address
    words = [*settings.command, *settings.args]
    found = shutil.which(words[0])
    if found is None:
        raise FileNotFoundError(f"{words[0]} is no program")
    files = {found: _file_digest(Path(found))}
    files |= {word: _file_digest(Path(word)) for word in words[1:] if Path(word).is_file()}
    return {"command": words, "files": files, "env": sorted(settings.env)}


def _file_digest(path: Path) -> str:
    if path.stat().st_size > _HASHED_FILE:
        raise OSError(f"{path} has more than {_HASHED_FILE:,} bytes")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def name_problem(server: str, name: str, names: Sequence[str]) -> str:
    """Why a tool of a server can never be used, because of its name among the server's `names`; empty where
    it can."""
    if not _NAME.fullmatch(name):
        return "its name has other characters than a-z A-Z 0-9 _ -"
    if len(merged_name(server, name)) > MAX_NAME:
        return f"its name has more than {MAX_NAME} characters with the server's"
    if [one.casefold() for one in names].count(name.casefold()) > 1:
        return "another tool of the server has this name, whatever its capitals"
    return ""


def merged_name(server: str, name: str) -> str:
    """A tool's name among those of all servers. Servers' names have no _, so that it has one meaning."""
    return f"{server}__{name}"


def definition_problem(definition: Mapping[str, Any]) -> str:
    """Why a tool's definition cannot be used; empty where it can."""
    size = len(msgspec.json.encode(definition))
    if size > MAX_DEFINITION:
        return f"its definition has {size:,} bytes, at most {MAX_DEFINITION:,} may be"
    schema = definition.get("inputSchema")
    if not isinstance(schema, dict) or cast("Json", schema).get("type") != "object":
        return "its arguments are no object"
    problem = problem_of_schema(cast("Json", schema))
    return "" if problem is None else f"its schema cannot be checked: {problem}"


class LockFile:
    """Reads and writes headrace.lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Lock:
        """What is approved; nothing where there is no file. UsageError where it is none or was edited."""
        try:
            if self.path.stat().st_size > MAX_LOCK:
                raise self._wrong(f"has more than {MAX_LOCK:,} bytes")
            lock = msgspec.json.decode(self.path.read_bytes(), type=thread_safe(Lock))
        except FileNotFoundError:
            return Lock()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._wrong(f"cannot be read ({error})") from None
        if lock.version != VERSION:
            raise self._wrong(f"has the version {lock.version}, this Headrace writes {VERSION}")
        for name, server in lock.servers.items():
            same = all(pinned(one.definition).sha256 == one.sha256 for one in server.tools.values())
            if not same or list_digest(server.tools) != server.list_sha256:
                raise self._wrong(f"has digests of {name!r:.60} that do not fit its tools")
        return lock

    def write(self, server: str, pin: PinnedServer) -> None:
        """Approve a server as `pin` has it. The file is replaced as a whole."""
        lock = self.read()
        servers = dict(sorted((lock.servers | {server: pin}).items()))
        data = msgspec.json.format(msgspec.json.encode(Lock(VERSION, servers), order="sorted"), indent=1)
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _wrong(self, cause: str) -> UsageError:
        return UsageError(f"{self.path} {cause}: approve the servers anew after moving it away")


def difference(before: PinnedServer | None, now: PinnedServer) -> str:
    """What has changed since the approval, as lines for people; empty where nothing has. Nothing hides in
    them."""
    old = _lines(before) if before is not None else []
    lines = difflib.unified_diff(old, _lines(now), "approved", "now", lineterm="", n=2)
    return "\n".join(lines)


def _lines(server: PinnedServer) -> list[str]:
    shown = {"identity": server.identity, "tools": {n: t.definition for n, t in sorted(server.tools.items())}}
    text = msgspec.json.format(msgspec.json.encode(shown, order="sorted"), indent=2).decode()
    return [visible(line) for line in text.splitlines()]
