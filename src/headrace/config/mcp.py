"""Settings of servers of tools: `[mcp.NAME]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, SECONDS, SIZE, SWITCH, Values, integer, one_of, text, texts
from headrace.errors import UsageError

MAX_SERVERS = 64
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")


def _words(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    words = cast("list[object]", given) if isinstance(given, list | tuple) else []
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise ValueError("a command, or a list of it and its arguments")
    return tuple(str(word) for word in words)


WORDS = Values("word", _words, (tuple,))
"""A text, or a list of texts, each as it is."""


Grant = Literal["authorization_code", "client_credentials"]
AuthMethod = Literal["client_secret_basic", "client_secret_post"]
Algorithm = Literal["RS256", "ES256", "PS256", "EdDSA"]


class OAuthSettings(Struct, frozen=True, kw_only=True):
    """`[mcp.NAME.oauth]`: how Headrace gets tokens for a server over HTTP."""

    grant: Annotated[
        Grant,
        Setting(help="a person logs in (`headrace mcp login`), or Headrace does", values=one_of(Grant)),
    ] = "authorization_code"
    client_id: Annotated[
        str | None,
        Setting(
            help="id of this client, if it is already registered",
            values=text("id"),
            shown_default="registered at login",
        ),
    ] = None
    client_secret: Annotated[
        str | None,
        Setting(help="name of its secret", values=text("env:VARIABLE"), shown_default="none"),
    ] = None
    private_key: Annotated[
        str | None,
        Setting(
            help="name of a private key (PEM) that signs in place of a secret, for client_credentials",
            values=text("file:PATH"),
            shown_default="none",
        ),
    ] = None
    algorithm: Annotated[Algorithm, Setting(help="of that key", values=one_of(Algorithm))] = "RS256"
    auth_method: Annotated[AuthMethod, Setting(help="how the secret is sent", values=one_of(AuthMethod))] = (
        "client_secret_basic"
    )
    issuer: Annotated[
        str | None,
        Setting(
            help="the one authorization server that gets the secret of client_credentials",
            values=text("url"),
            shown_default="none",
        ),
    ] = None
    client_metadata_url: Annotated[
        str | None,
        Setting(
            help="https address of a document that describes this client, in place of registration",
            values=text("url"),
            shown_default="none",
        ),
    ] = None
    port: Annotated[
        int,
        Setting(
            help="of 127.0.0.1, to which the browser comes back; 0 is any free one", values=integer(0, 65535)
        ),
    ] = 0


class McpSettings(Struct, frozen=True, kw_only=True):
    """An entry of [mcp]: a server of tools, which is a program (`command`) or is at an address (`url`)."""

    command: Annotated[
        tuple[str, ...],
        Setting(help="program that speaks MCP on stdin and stdout", values=WORDS, shown_default="none"),
    ] = ()
    args: Annotated[
        tuple[str, ...], Setting(help="further arguments of the program", values=WORDS, shown_default="none")
    ] = ()
    env: Annotated[
        Mapping[str, object],
        Setting(
            help="environment variables of the program; env:VARIABLE and file:PATH name secrets",
            values=OBJECT,
            shown_default="none",
        ),
    ] = {}
    url: Annotated[
        str | None,
        Setting(help="address of a server over HTTP", values=text("url"), shown_default="none"),
    ] = None
    headers: Annotated[
        Mapping[str, object],
        Setting(
            help='headers of requests to it, such as {Authorization = "env:SHOP"}: all values name secrets',
            values=OBJECT,
            shown_default="none",
        ),
    ] = {}
    oauth: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="get tokens by OAuth for a server over HTTP, see below; {}: with the defaults",
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    allow: Annotated[
        tuple[str, ...],
        Setting(help="tools that may be used, by name or pattern (find_*)", values=texts("name[,name]")),
    ] = ()
    keys: Annotated[
        tuple[str, ...],
        Setting(
            help="names of the API keys that may use it", values=texts("name[,name]"), shown_default="all"
        ),
    ] = ()
    timeout: Annotated[
        float, Setting(help="time limit of a call; then the connection is closed", values=SECONDS)
    ] = 30.0
    memory: Annotated[
        int, Setting(help="memory that the program may have", values=SIZE, shown_default="1GiB")
    ] = 2**30
    max_result: Annotated[
        int, Setting(help="bytes of a result; the rest is cut", values=SIZE, shown_default="64KiB")
    ] = 2**16
    images: Annotated[
        bool, Setting(help="pass on images in results", values=SWITCH, shown_default="false")
    ] = False


MCP_SETTINGS: Mapping[str, Setting] = table_of(McpSettings)
OAUTH_SETTINGS: Mapping[str, Setting] = table_of(OAuthSettings)


def oauth_of(settings: McpSettings, where: str) -> OAuthSettings | None:
    """How a server's tokens are got; None without. UsageError for what is unknown or contradicts itself."""
    if settings.oauth is None:
        return None
    where = f"{where}.oauth"
    values: dict[str, Any] = {}
    for key, value in settings.oauth.items():
        row = OAUTH_SETTINGS[known_name(key, list(OAUTH_SETTINGS), f"{where}: unknown {key!r}")]
        values[key] = row.parse(value, f"{where}.{key}")
    found = OAuthSettings(**values)
    if settings.url is None or any(name.casefold() == "authorization" for name in settings.headers):
        raise UsageError(f"{where} needs url, and no header Authorization beside it")
    if found.grant == "client_credentials":
        if found.client_id is None or (found.client_secret is None) == (found.private_key is None):
            raise UsageError(f"{where}: client_credentials needs client_id, and client_secret or private_key")
        if found.issuer is None:
            raise UsageError(
                f"{where}: client_credentials needs issuer: without it the server of tools says who gets the "
                "secret"
            )
    elif found.client_secret is not None and found.client_id is None:
        raise UsageError(f"{where}.client_secret needs client_id")
    person = found.grant == "authorization_code"
    odd = ("private_key", "algorithm", "issuer") if person else ("client_metadata_url", "port")
    for name in odd:
        if name in values:
            raise UsageError(f"{where}.{name} has no effect with grant {found.grant}")
    document = found.client_metadata_url
    if document is not None and (not document.startswith("https://") or urlsplit(document).path in ("", "/")):
        raise UsageError(f"{where}.client_metadata_url is no https address with a path")
    return found


def read_mcp(table: Mapping[str, object] | None) -> dict[str, McpSettings]:
    """The entries of [mcp]; UsageError names what is unknown, no value, or contradicts itself."""
    found = {name: _read(name, entry) for name, entry in (table or {}).items()}
    if len(found) > MAX_SERVERS:
        raise UsageError(f"mcp has {len(found)} servers, at most {MAX_SERVERS} may be")
    return found


def _read(name: str, entry: object) -> McpSettings:
    where = f"mcp.{name}"
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: a server's name is up to 32 small letters, digits and -, which begins and ends with "
            "none of the last"
        )
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no table")
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, object]", entry).items():
        row = MCP_SETTINGS[known_name(key, list(MCP_SETTINGS), f"{where}: unknown {key!r}")]
        values[key] = row.parse(value, f"{where}.{key}")
    found = McpSettings(**values)
    if bool(found.command) == (found.url is not None):
        raise UsageError(f"{where} needs either command or url")
    of_programs = [key for key in ("args", "env", "memory") if key in values]
    if found.url is not None and of_programs:
        raise UsageError(f"{where}.{of_programs[0]} is for programs: {where} has a url")
    if found.url is None and found.headers:
        raise UsageError(f"{where}.headers needs url")
    _check_url(found.url, where)
    oauth_of(found, where)
    for variable, value in found.env.items():
        if not isinstance(value, str) or "=" in variable or "\0" in variable + value:
            raise UsageError(f"{where}.env.{variable} is no variable with a text")
    for header, value in found.headers.items():
        if not isinstance(value, str) or not _HEADER.fullmatch(header):
            raise UsageError(f"{where}.headers: {header!r:.100} is no header with the name of a secret")
    return found


def _check_url(url: str | None, where: str) -> None:
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{where}.url is no address that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:  # it would be in pins and messages
        raise UsageError(f"{where}.url has a password: name it in {where}.headers")
