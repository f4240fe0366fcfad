"""`headrace route`: what routes do with a request, and the certificates of cascades."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.cli.flags import takes_settings
from headrace.cli.scored_pairs import ScoredPairs
from headrace.cli.server_call import call_server
from headrace.cli.terminal import JsonFlag, note, print_json, print_table, status
from headrace.config.extras import extra_module
from headrace.config.providers import RemoteModelSettings, is_remote, read_remote_model
from headrace.config.settings import Settings
from headrace.config.sources import model_entries
from headrace.errors import UsageError
from headrace.storage.database import Database

if TYPE_CHECKING:
    from headrace.gateway.gate import Calibration

HELP = """Show how requests are routed, and calibrate cascades. Needs the server, at --host and --port.

`explain` shows the targets in the order in which they would be asked, without asking any. `calibrate` sends
each request of FILE (JSON lines with prompt or messages, and label if the right answer is known) to both
models of a cascade, and certifies a score above which at most the share --risk of the small model's answers
is wrong. Lines that have score and is_wrong, small_model and large_model are not sent. Scores are kept in
FILE.scored: after an error, or with another --risk, only what has no score is sent.

\b
Examples:
  headrace route list
  headrace route explain -m auto "What is a quicksort?"
  headrace route calibrate -m auto pairs.jsonl --risk 0.05 --task intents
  headrace route remove -m auto
"""


class RouteAction(StrEnum):
    """Subcommands."""

    LIST = "list"
    EXPLAIN = "explain"
    CALIBRATE = "calibrate"
    REMOVE = "remove"


@takes_settings("host", "port", "api_key", "admin_api_key", "store")
def command(
    action: Annotated[RouteAction, typer.Argument(metavar="ACTION", help="Subcommand.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The prompt to explain, or the file of pairs.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Name of the route.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="For explain: tokens of the answer.")] = None,
    risk: Annotated[float, typer.Option(help="For calibrate: part of answers that may be wrong.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="For calibrate: how sure the bound is.")] = 0.95,
    task: Annotated[str, typer.Option(help="For calibrate: what the pairs are, for you.")] = "",
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Run the subcommand; see HELP."""
    if action is RouteAction.LIST:
        _list(settings, json)
        return
    if not model:
        raise UsageError(f"route {action.value} needs the name of a route: -m NAME")
    if action is RouteAction.REMOVE:
        _remove(settings, model, json)
    elif not text:
        what = "a prompt" if action is RouteAction.EXPLAIN else "a file of JSON lines"
        raise UsageError(f"route {action.value} needs {what}")
    elif action is RouteAction.EXPLAIN:
        _explain(settings, model, text, max_tokens, json)
    else:
        _calibrate(settings, model, Path(text), risk, confidence, task, json)


def _list(settings: Settings, json: bool) -> None:
    routes = call_server(settings, "GET", "/v1/routes")["data"]
    if json:
        print_json(routes)
        return
    rows = [
        (
            one["id"],
            one["policy"],
            one["privacy"],
            ", ".join(target["target"] for target in one["targets"]),
            "" if one["gate"] is None else one["gate"]["closed"] or "open",
        )
        for one in routes
    ]
    print_table(rows, header=("NAME", "POLICY", "PRIVACY", "TARGETS", "GATE"))


def _explain(settings: Settings, model: str, prompt: str, max_tokens: int | None, json: bool) -> None:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    found = call_server(settings, "POST", "/v1/routes/explain", body)
    if json:
        print_json(found)
        return
    print(f"{found['route']}: {found['policy']}, {found['prompt_tokens']:,} tokens in, ", end="")
    print(f"{found['output_tokens']:,} out expected")
    if found["personal"] is not None:
        print(f"personal data: {', '.join(found['personal']) or 'none'}")
    if found["gate"] is not None:
        print(f"gate: {found['gate']['closed'] or 'open'}")
    rows = [
        (
            "" if one["place"] is None else str(one["place"]),
            one["target"],
            one["provider"],
            "" if one["seconds"] is None else f"{one['seconds']:.2f}",
            "" if one["usd"] is None else f"{one['usd']:.9f}",
            *(("ok", one["reason"]) if one["verdict"] == "ok" else ("no", one["verdict"])),
        )
        for one in found["targets"]
    ]
    print_table(rows, header=("", "TARGET", "PROVIDER", "SECONDS", "$", "VERDICT", "REASON"))


def _route_settings(model: str) -> RemoteModelSettings:
    entry = model_entries().get(model)
    if not is_remote(entry) or (found := read_remote_model(model, entry, "models")).route != "cascade":
        raise UsageError(f"{model!r} is no cascade of [models] in headrace.toml", param="model")
    return found


def _calibrate(
    settings: Settings, model: str, file: Path, risk: float, confidence: float, task: str, json: bool
) -> None:
    gates = extra_module("gateway", "headrace.gateway.gate")
    route = _route_settings(model)
    pairs = ScoredPairs(file, model, msgspec.json.encode(route))
    with status() as shown:
        scored = pairs.scores(lambda body: call_server(settings, "POST", "/v1/routes/score", body), shown)
    known = [one for one in scored if one["score"] is not None]
    if len(known) < len(scored):
        note(f"{len(scored) - len(known):,} of {len(scored):,} small answers have no score: left out")
    small, large = (_one_model(known, name) for name in ("small_model", "large_model"))
    made: Calibration = gates.calibrate(
        [gates.Pair(score=float(one["score"]), is_wrong=bool(one["is_wrong"])) for one in known],
        route=model,
        settings=route,
        task=task,
        small=small,
        large=large,
        risk=risk,
        confidence=confidence,
    )
    database = Database(settings.store_file)
    try:
        gates.GateStore(database).save(made)
    finally:
        database.close()
    found = made.certificate
    if json:
        print_json({"route": model, **msgspec.to_builtins(found)})
        return
    print(
        f"from a score of {found.threshold:.4g} on at most {risk:.1%} of the small answers are wrong, with "
        f"{confidence:.0%} confidence: {found.answered:,} of {found.labeled:,} ({found.share:.1%}) have it, "
        f"{found.wrong:,} of these are wrong"
    )


def _one_model(scored: list[dict[str, Any]], name: str) -> str:
    models = sorted({one[name] for one in scored})
    if len(models) != 1:
        raise UsageError(f"the pairs have {len(models)} models as {name}: a certificate holds for one")
    return models[0]


def _remove(settings: Settings, model: str, json: bool) -> None:
    gates = extra_module("gateway", "headrace.gateway.gate")
    database = Database(settings.store_file)
    try:
        removed = gates.GateStore(database).remove(model)
    finally:
        database.close()
    if json:
        print_json({"route": model, "removed": removed})
    else:
        print(f"{model} has no certificate any more" if removed else f"{model} has no certificate")
