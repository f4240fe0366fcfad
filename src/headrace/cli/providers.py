"""`headrace providers`: the keys of providers of remote models."""

from __future__ import annotations

import getpass
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.extras import extra_module
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.storage.database import Database

if TYPE_CHECKING:
    from headrace.providers.check import ProviderCheck
    from headrace.providers.key_store import KeyStore

HELP = """Keep keys of providers, and check that providers answer.

A key is read from the terminal without showing it, or from stdin; it is encrypted in the store. What opens
it is HEADRACE_MASTER_KEY, the keyring of the operating system (where `keyring` is installed), or a key file
in the configuration folder. A key in a provider's variable, such as OPENAI_API_KEY, goes before a kept one.
`test` asks a provider for its list of models, which costs nothing; without a name it asks all.

\b
Examples:
  headrace providers add openai
  headrace providers add work < key.txt
  headrace providers list
  headrace providers test openai
  headrace providers rm openai
"""


NONE = "no provider is configured: add a table such as [providers.openai] to headrace.toml"


class ProviderAction(StrEnum):
    """Subcommands."""

    ADD = "add"
    LIST = "list"
    TEST = "test"
    RM = "rm"


@takes_settings("providers", "store")
def command(
    action: Annotated[ProviderAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the provider.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    key_store = extra_module("gateway", "headrace.providers.key_store", "aiohttp", "cryptography")
    database = Database(settings.store_file)
    try:
        keys: KeyStore = key_store.KeyStore(database)
        if action is ProviderAction.LIST:
            _list(keys, settings, json)
        elif action is ProviderAction.TEST:
            _test(keys, settings, name, json)
        elif not name:
            raise UsageError(f"providers {action.value} needs a name: headrace providers {action.value} NAME")
        elif action is ProviderAction.ADD:
            _add(keys, settings, name, json)
        else:
            keys.remove(name)
            print_json({"name": name, "removed": True}) if json else print(f"removed the key of {name}")
    finally:
        database.close()


def _add(keys: KeyStore, settings: Settings, name: str, json: bool) -> None:
    target = extra_module("gateway", "headrace.providers.target")
    table = extra_module("gateway", "headrace.providers.table")
    known = target.read_providers(settings.providers)
    if name not in known and name not in table.provider_rows():
        raise UsageError(f"there is no provider {name!r}: add [providers.{name}] to headrace.toml first")
    key = getpass.getpass(f"key of {name}: ") if sys.stdin.isatty() else sys.stdin.read()
    sealed_by = keys.add(name, key.strip())
    shown = extra_module("gateway", "headrace.providers.key_store").SHOWN[sealed_by]
    if json:
        print_json({"name": name, "sealed_by": sealed_by})
    else:
        print(f"kept the key of {name}, encrypted under {shown}")
    if name not in known:
        note(f"note: add [providers.{name}] to headrace.toml, and models of it to [models]")


def _list(keys: KeyStore, settings: Settings, json: bool) -> None:
    check = extra_module("gateway", "headrace.providers.check")
    found: list[ProviderCheck] = check.described(keys, settings.providers)
    if json:
        print_json([one.fields() for one in found])
        return
    if not found:
        print(NONE)
        return
    rows = [
        (
            one.name,
            one.dialect,
            one.base_url,
            one.key_from,
            "" if one.added_s is None else time.strftime("%Y-%m-%d", time.localtime(one.added_s)),
        )
        for one in found
    ]
    print_table(rows, header=("NAME", "DIALECT", "ADDRESS", "KEY", "ADDED"))


def _test(keys: KeyStore, settings: Settings, name: str | None, json: bool) -> None:
    check = extra_module("gateway", "headrace.providers.check")
    results: list[tuple[str, str | None]] = check.checked(keys, settings.providers, name)
    if json:
        print_json([{"name": name, "ok": problem is None, "problem": problem} for name, problem in results])
    elif not results:
        print(NONE)
    else:
        for one, problem in results:
            print(f"{one}: ok" if problem is None else f"{one}: {problem}")
    if any(problem is not None for _, problem in results):
        raise typer.Exit(1)
