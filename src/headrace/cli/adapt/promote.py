"""`headrace adapt promote`: let a proposed student answer."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from headrace.adapt.actions import PromotionTerms, plain, promote_student
from headrace.adapt.decisions.promotion import AUDIT, SHARE
from headrace.adapt.students.registry import person
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
from headrace.config.adapt_settings import read_adapt
from headrace.config.settings import Settings
from headrace.config.sources import model_entries
from headrace.errors import HeadraceError
from headrace.gateway.gate import GateStore
from headrace.gateway.routes import read_routes
from headrace.providers.target import read_providers
from headrace.storage.database import Database
from headrace.weights.hub.resolver import resolve
from headrace.workers.model_spec import read_specs

HELP = """Let the student that was proposed for a task answer: first a part of the requests, then more.

What it is not sure of the large model answers. A part of its answers is checked with the large model; where
these are wrong more often than certified the student is rolled back by itself. A running server notices
within a second.

\b
Examples:
  headrace adapt promote t-3fa2
  headrace adapt promote t-3fa2 --share 1 --audit 0.05
"""


@takes_settings("store")
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    share: Annotated[
        float, typer.Option(min=0.001, max=1, help="Part of the requests; doubled after every 20 checks.")
    ] = SHARE,
    audit: Annotated[
        float, typer.Option(min=0.001, max=1, help="Part of its answers that is checked.")
    ] = AUDIT,
    accept_slices: Annotated[
        bool, typer.Option("--accept-slices", help="Also where groups of questions are much worse.")
    ] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Promote it; see HELP."""
    routes = read_routes(model_entries(), read_providers(settings.providers))
    canaries = read_adapt(settings.adapt).canaries
    how = PromotionTerms(share=share, audit=audit, accepts_slices=accept_slices, canaries=canaries)
    main = Database(settings.store_file)
    try:
        with opened_store(settings) as store:
            served = partial(_name_here, settings)
            found = promote_student(store, GateStore(main), task, routes, served, person(), how)
    finally:
        main.close()
    if json:
        print_json(plain(found))
        return
    whose = f"of the requests of task {found.task} to {found.route}"
    print(f"student {found.student} answers {found.share:.0%} {whose}")
    print(f"take it back: headrace adapt rollback {found.task}")


def _name_here(settings: Settings, name: str) -> str | None:
    """The own name of a model of this machine, by the settings and what is stored here; a model that has
    another name in a running server is promoted there."""
    base = name.rpartition(":")[0] or name
    for spec in read_specs([], settings):
        if base in (spec.name, *spec.aliases):
            return spec.name + name[len(base) :]
    try:
        resolve(base, offline=True)
    except HeadraceError:
        return None
    return name
