"""`headrace keys`: the API keys of the server."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer
from msgspec.structs import asdict, replace

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_table
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.inference.accounts import configured_limits
from headrace.storage.database import Database
from headrace.storage.keys import SCOPES, Keys, Scope
from headrace.storage.ledger_store import shared_store

HELP = """Create, list and revoke keys of `headrace serve`. A running server applies changes within a second.

A key is shown once, when it is created: only a hash of it is stored. As soon as a key exists, every request
needs one. The limit flags apply to the new key; the defaults are the server's settings.

Scopes: infer has models compute (the default), alias also makes aliases of its own, admin may do everything:
load, unload, pull and delete models, use any priority.

\b
Examples:
  headrace keys add alice
  headrace keys add ops --scope admin
  headrace keys add ci --key-rpm 60 --key-tpm 100000 --key-max-concurrency 4
  headrace keys list
  headrace keys rm alice
  headrace keys add bob --fronts 3 --ledger postgresql://headrace@db/headrace
"""


class KeyAction(StrEnum):
    """Subcommands."""

    ADD = "add"
    LIST = "list"
    RM = "rm"


@takes_settings("key_rpm", "key_tpm", "key_max_concurrency", "key_priority", "store", "ledger")
def command(
    action: Annotated[KeyAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the key, for add and rm.")
    ] = None,
    scope: Annotated[
        str, typer.Option(help="What the new key may do: infer, alias, admin, separated by commas.")
    ] = "infer",
    fronts: Annotated[
        int | None, typer.Option(help="Servers behind one address; above 1 their keys are in --ledger.")
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    if fronts is not None and fronts > 1 and settings.ledger is None:
        raise UsageError("--fronts needs --ledger: where the servers have their keys", param="fronts")
    if fronts is not None:
        settings = replace(settings, cluster={**(settings.cluster or {}), "fronts": fronts})
    database = Database(settings.store_file)
    store = shared_store(database, settings)
    if store is database and settings.ledger is not None:
        note("these are the keys of one server, in its store; those of several are meant with --fronts")
    try:
        keys = Keys(store)
        if action is KeyAction.LIST:
            _list(keys, json)
            return
        if not name:
            raise UsageError(f"keys {action.value} needs a name: headrace keys {action.value} NAME")
        if action is KeyAction.ADD:
            key = keys.add(name, configured_limits(settings), _scopes(scope))
            print_json({"name": name, "key": key}) if json else print(key)
        else:
            keys.revoke(name)
            print_json({"name": name, "revoked": True}) if json else print(f"revoked {name}")
    finally:
        store.close()
        database.close()


def _list(keys: Keys, json: bool) -> None:
    found = keys.all()
    if json:
        print_json(
            [
                {
                    "name": key.name,
                    "created_s": key.created_s,
                    "scopes": sorted(key.scopes),
                    **asdict(key.limits),
                }
                for key in found
            ]
        )
        return
    rows = [
        (
            key.name,
            time.strftime("%Y-%m-%d", time.localtime(key.created_s)),
            ",".join(sorted(key.scopes)),
            *(
                "" if limit is None else f"{limit:,}"
                for limit in (
                    key.limits.requests_per_minute,
                    key.limits.tokens_per_minute,
                    key.limits.concurrency,
                    key.limits.priority,
                )
            ),
        )
        for key in found
    ]
    print_table(
        rows, header=("NAME", "CREATED", "SCOPES", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT", "PRIORITY")
    )


def _scopes(text: str) -> frozenset[Scope]:
    """The scopes of --scope; UsageError for one that there is not."""
    given = [word.strip() for word in text.split(",")]
    unknown = [word for word in given if word not in SCOPES]
    if unknown:
        raise UsageError(f"--scope names {unknown[0]!r}: the scopes are {', '.join(SCOPES)}", param="scope")
    return frozenset(scope for scope in SCOPES if scope in given)
