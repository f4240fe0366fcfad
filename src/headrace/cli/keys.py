"""`headrace keys`: the API keys of the server."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, print_table
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys

HELP = """Make, list and revoke the API keys of `headrace serve`. A running server knows within a second.

A key is shown once, when it is made: only a hash of it is kept. As soon as there is a key, every request
needs one. The limits are those of the new key; without them those of the server's settings hold.

\b
Examples:
  headrace keys add alice
  headrace keys add ci --requests-per-minute 60 --tokens-per-minute 100000 --concurrency 4
  headrace keys list
  headrace keys rm alice
"""


class Action(StrEnum):
    """What to do."""

    ADD = "add"
    LIST = "list"
    RM = "rm"


@takes_settings("requests_per_minute", "tokens_per_minute", "concurrency", "store")
def command(
    action: Annotated[Action, typer.Argument(help="What to do.")],
    name: Annotated[str | None, typer.Argument(help="Name of the key, for add and rm.")] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Do it; see HELP."""
    database = Database(settings.store_file)
    try:
        keys = Keys(database)
        if action is Action.LIST:
            _list(keys, json)
            return
        if not name:
            raise UsageError(f"keys {action.value} needs a name: headrace keys {action.value} NAME")
        if action is Action.ADD:
            limits = KeyLimits(settings.requests_per_minute, settings.tokens_per_minute, settings.concurrency)
            key = keys.add(name, limits)
            print_json({"name": name, "key": key}) if json else print(key)
        else:
            keys.revoke(name)
            print_json({"name": name, "revoked": True}) if json else print(f"{name} is revoked")
    finally:
        database.close()


def _list(keys: Keys, json: bool) -> None:
    found = keys.all()
    if json:
        names = ("requests_per_minute", "tokens_per_minute", "concurrency")
        print_json(
            [
                {"name": key.name, "created_s": key.created_s, **{n: getattr(key.limits, n) for n in names}}
                for key in found
            ]
        )
        return
    rows = [
        (
            key.name,
            time.strftime("%Y-%m-%d", time.localtime(key.created_s)),
            *(
                "" if limit is None else f"{limit:,}"
                for limit in (
                    key.limits.requests_per_minute,
                    key.limits.tokens_per_minute,
                    key.limits.concurrency,
                )
            ),
        )
        for key in found
    ]
    print_table(rows, header=("NAME", "MADE", "REQUESTS/MIN", "TOKENS/MIN", "AT A TIME"))
