"""Settings of the response cache: the table `[cache]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, SIZE, Values, number, one_of
from headrace.errors import UsageError

ExactMode = Literal["auto", "off"]
NearMode = Literal["draft", "off", "answer"]
CacheScope = Literal["key", "team"]
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
LONGEST_TTL_S = 10 * 365 * 86_400


def _age(value: object) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value).strip())
    seconds = float(found[1]) * _UNITS_S[found[2]] if found and not isinstance(value, bool) else 0.0
    if not 0 < seconds <= LONGEST_TTL_S:
        raise ValueError("a time such as 90s, 30m, 12h or 7d")
    return seconds


AGE = Values("age", _age, (int, float))
"""Seconds, also as 30m, 12h or 7d."""


class CacheSettings(Struct, frozen=True, kw_only=True):
    """The table `[cache]`. Without it nothing is kept."""

    exact: Annotated[
        ExactMode,
        Setting(
            help="auto: answer an identical request from the cache, if the model would give the same answer",
            values=one_of(ExactMode),
        ),
    ] = "auto"
    near: Annotated[
        NearMode,
        Setting(
            help="use of the answer to the most similar question. draft: as the request's prediction, which "
            "changes no byte; answer: also as the reply, for requests that ask for it and if a certificate "
            "allows it",
            values=one_of(NearMode),
        ),
    ] = "off"
    risk: Annotated[
        float,
        Setting(help="share of near answers that may be wrong (95 % confidence)", values=number(0.001, 0.5)),
    ] = 0.02
    bytes: Annotated[int, Setting(help="size on the disk", values=SIZE, shown_default="1GiB")] = 2**30
    ttl: Annotated[
        float, Setting(help="time after which an answer is deleted", values=AGE, shown_default="7d")
    ] = 7.0 * 86_400
    scope: Annotated[
        CacheScope,
        Setting(
            help="who shares answers: each key has its own, or the keys of a team share them",
            values=one_of(CacheScope),
        ),
    ] = "key"
    teams: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='with scope team: names of keys by team, such as {"red": ["alice", "bob"]}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None

    def team_of(self, key: str) -> str | None:
        """The team that shares answers with this key; None: it has its own."""
        if self.scope == "key" or self.teams is None:
            return None
        return next((team for team, keys in self.teams.items() if key in cast("list[str]", keys)), None)


CACHE_SETTINGS: Mapping[str, Setting] = table_of(CacheSettings)


def read_cache(table: Mapping[str, object] | None) -> CacheSettings | None:
    """The table `[cache]`, None where there is none; UsageError names what is unknown or no value."""
    if table is None:
        return None
    values: dict[str, Any] = {}
    for name, value in table.items():
        row = CACHE_SETTINGS[known_name(name, list(CACHE_SETTINGS), f"cache: unknown {name!r}")]
        values[name] = row.parse(value, f"cache.{name}")
    found = CacheSettings(**values)
    _check_teams(found)
    return found


def _check_teams(settings: CacheSettings) -> None:
    if (settings.scope == "team") != (settings.teams is not None):
        raise UsageError('cache.scope = "team" needs cache.teams, the names of keys by team; give both')
    seen: dict[str, str] = {}
    for team, keys in (settings.teams or {}).items():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in cast("list[object]", keys)):
            raise UsageError(f"cache.teams.{team} is no list of names of keys")
        for key in cast("list[str]", keys):
            if seen.setdefault(key, team) != team:
                raise UsageError(f"cache.teams: {key!r} is in {seen[key]!r} and in {team!r}: choose one")
