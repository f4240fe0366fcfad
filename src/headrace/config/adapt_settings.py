"""Settings of the adaptive loop: the table `[adapt]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.config.cache_settings import AGE
from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, SIZE, SWITCH, integer, number, text, texts
from headrace.errors import UsageError

EVERY_KEY = "*"


class AdaptSettings(Struct, frozen=True, kw_only=True):
    """The table `[adapt]`. Without `enabled` and `keys` nothing is collected."""

    enabled: Annotated[bool, Setting(help="collect traffic, and learn from it", values=SWITCH)] = False
    keys: Annotated[
        tuple[str, ...],
        Setting(
            help="names of the keys whose traffic is collected; * is all, and what comes without a key",
            values=texts("name[,name]"),
            shown_default="none",
        ),
    ] = ()
    teams: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="keys whose traffic may train what the others of the team are served, by team, such as "
            '{"red": ["alice", "bob"]}; without one each key has its own tasks',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    sample: Annotated[
        float, Setting(help="share of the requests that is collected", values=number(0.0001, 1))
    ] = 1.0
    retention: Annotated[
        float, Setting(help="time after which an example is deleted", values=AGE, shown_default="30d")
    ] = 30.0 * 86_400
    max_examples: Annotated[
        int, Setting(help="examples of each key that are kept; older ones are deleted", values=integer(100))
    ] = 20_000
    detector: Annotated[
        str,
        Setting(
            help="model of this machine that finds names and places, which are replaced before anything is "
            "stored, besides the patterns of personal data; patterns: these alone",
            values=text("name"),
        ),
    ] = "tagger"
    encoder: Annotated[
        str, Setting(help="model of this machine whose vectors tasks and students use", values=text("name"))
    ] = "embed"
    base: Annotated[
        str | None,
        Setting(
            help="model of this machine, such as mini, that learns to write answers (LoRA) where they cannot "
            "be chosen among known ones; it needs headrace[train]",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    student: Annotated[
        str | None,
        Setting(
            help="model of this machine all of whose weights learn a task's answers, where an adapter of "
            "adapt.base does not reach far enough; it needs headrace[train]",
            values=text("name"),
            shown_default="adapt.base",
        ),
    ] = None
    tagger: Annotated[
        str,
        Setting(
            help="model of this machine that finds entities: on its states students learn answers that are "
            "parts of the question",
            values=text("name"),
        ),
    ] = "tagger"
    judge: Annotated[
        str | None,
        Setting(
            help="model of this machine or of a provider (a name of [models], or PROVIDER/MODEL) that "
            "compares texts of students with those of the large model where equality says nothing; people "
            "check it with `headrace adapt label`",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    judge_margin: Annotated[
        float,
        Setting(
            help="where a judge compares: share of all answers by which people may prefer the large model's "
            "more often than the student's",
            values=number(0.001, 0.5),
        ),
    ] = 0.05
    judge_pairs: Annotated[
        int,
        Setting(help="pairs of answers that judges compare a day, each in two requests", values=integer(1)),
    ] = 200
    margin: Annotated[
        float,
        Setting(help="share of answers by which a student may be worse", values=number(0.001, 0.5)),
    ] = 0.02
    alpha: Annotated[
        float,
        Setting(
            help="probability that a student that is worse than that is ever proposed",
            values=number(0.0001, 0.5),
        ),
    ] = 0.05

    canaries: Annotated[
        tuple[str, ...],
        Setting(
            help="texts that were put into traffic to see whether a student gives them away; one that has "
            "kept any is not promoted",
            values=texts("text[,text]"),
            shown_default="none",
        ),
    ] = ()

    webhook: Annotated[
        str | None,
        Setting(
            help="URL that alerts are sent to by POST, signed as Standard Webhooks has it, such as "
            "https://example.com/alerts",
            values=text("url"),
            shown_default="none",
        ),
    ] = None
    webhook_secret_env: Annotated[
        str | None,
        Setting(
            help="environment variable with the secret that signs alerts; it is needed with a webhook",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    train_memory: Annotated[
        int, Setting(help="memory that a training may take", values=SIZE, shown_default="2G")
    ] = 2 << 30
    train_hours: Annotated[
        float, Setting(help="processor time that a training may take, in hours", values=number(0.01, 1000))
    ] = 4.0

    train_cores: Annotated[
        int, Setting(help="processor cores that a training may use", values=integer(1))
    ] = 1

    def group_of(self, key: str) -> str:
        """Whose tasks the traffic of a key belongs to: its team's, or its own."""
        for team, keys in (self.teams or {}).items():
            if key in cast("list[str]", keys):
                return f"team {team}"
        return f"key {key}"

    def collects(self, key: str) -> bool:
        """Whether a key has opted in; "" is traffic without one."""
        return EVERY_KEY in self.keys or (bool(key) and key in self.keys)


ADAPT_SETTINGS: Mapping[str, Setting] = table_of(AdaptSettings)


def read_adapt(table: Mapping[str, object] | None) -> AdaptSettings:
    """The table `[adapt]`; UsageError names what is unknown or no value."""
    values: dict[str, Any] = {}
    for name, value in (table or {}).items():
        row = ADAPT_SETTINGS[known_name(name, list(ADAPT_SETTINGS), f"adapt: unknown {name!r}")]
        values[name] = row.parse(value, f"adapt.{name}")
    found = AdaptSettings(**values)
    if found.enabled and not found.keys:
        raise UsageError(
            'adapt.enabled needs adapt.keys, the names of the keys that have agreed: ["*"] is all of them'
        )
    _check_teams(found)
    _check_webhook(found)
    return found


def _check_webhook(settings: AdaptSettings) -> None:
    if settings.webhook is None:
        return
    try:
        url = urlsplit(settings.webhook)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        url, is_url = None, False
    if not is_url or url is None or url.username is not None or url.fragment:
        raise UsageError(
            "adapt.webhook is no URL such as https://example.com/alerts, without user and fragment"
        )
    if settings.webhook_secret_env is None:
        raise UsageError(
            "adapt.webhook needs adapt.webhook_secret_env, the name of the environment variable whose value "
            "signs what is sent: a receiver could not tell it from what others send"
        )


def _check_teams(settings: AdaptSettings) -> None:
    seen: dict[str, str] = {}
    for team, keys in (settings.teams or {}).items():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in cast("list[object]", keys)):
            raise UsageError(f"adapt.teams.{team} is no list of names of keys")
        for key in cast("list[str]", keys):
            if seen.setdefault(key, team) != team:
                raise UsageError(f"adapt.teams: {key!r} is in {seen[key]!r} and in {team!r}: choose one")
