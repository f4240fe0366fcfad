"""Settings of remote models: `[providers.NAME]`, and the entries of `[models]` that name a provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, SWITCH, Values, integer, number, one_of, text, texts
from headrace.errors import UsageError

DialectName = Literal["openai_chat", "openai_responses", "anthropic", "google"]
PrivacyName = Literal["off", "local", "redact"]
ScoreName = Literal["logprob", "least", "margin", "verifier"]
CompareName = Literal["equal", "normalized", "words"]
BreakName = Literal["error", "continue"]
BatchName = Literal["lines", "provider"]
TierName = Literal["standard", "flex", "priority"]

S = TypeVar("S", bound=Struct)


def _url(value: object) -> str:
    wanted = "an address such as https://api.example.com/v1, without a key, a query or a fragment"
    if not isinstance(value, str):
        raise ValueError(wanted)
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - it is checked when it is read
    except ValueError:
        raise ValueError(wanted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not value.isprintable():
        raise ValueError(wanted)
    if parts.username or parts.password or parts.query or parts.fragment or " " in value:
        raise ValueError(wanted)
    return value.rstrip("/")


URL = Values("url", _url, (str,))
"""The address of an API, without a slash at its end."""
_TIMEOUT_S = number(0.1, 86_400, "seconds")
_SHARE = number(0, 1)


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """One provider. The name of one that is known by name stands for address, dialect and key's variable."""

    kind: Annotated[
        str | None,
        Setting(
            help="provider or server program that this one is, such as openai or vllm",
            values=text("name"),
            shown_default="its own name, where that is known",
        ),
    ] = None
    dialect: Annotated[
        DialectName | None,
        Setting(help="API that it speaks", values=one_of(DialectName), shown_default="the kind's"),
    ] = None
    base_url: Annotated[
        str | None,
        Setting(help="where its API is, with its version", values=URL, shown_default="the kind's"),
    ] = None
    api_key_env: Annotated[
        str | None,
        Setting(
            help="environment variable with its key; it overrides a key of `headrace providers add`",
            values=text("variable"),
            shown_default="the kind's",
        ),
    ] = None
    connect_timeout: Annotated[float, Setting(help="time until a connection stands", values=_TIMEOUT_S)] = (
        10.0
    )
    first_byte_timeout: Annotated[
        float, Setting(help="time from then until the reply begins", values=_TIMEOUT_S)
    ] = 120.0
    idle_timeout: Annotated[float, Setting(help="time without any byte of the reply", values=_TIMEOUT_S)] = (
        60.0
    )
    total_timeout: Annotated[float, Setting(help="time of a whole attempt", values=_TIMEOUT_S)] = 900.0
    max_connections: Annotated[
        int, Setting(help="connections to it at the same time", values=integer(1, 10_000))
    ] = 256
    allow_private: Annotated[
        bool,
        Setting(
            help="connect even if a public name resolves to a private address",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    direct: Annotated[
        bool,
        Setting(
            help="requests may name any model of it as NAME/MODEL, without an entry in [models]",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False


class RemoteModelSettings(Struct, frozen=True, kw_only=True):
    """An entry of `[models]` that is answered elsewhere: by a provider's model, or by targets in order."""

    provider: Annotated[
        str | None,
        Setting(help="name of a table of [providers]", values=text("name"), shown_default="none"),
    ] = None
    model: Annotated[
        str | None,
        Setting(
            help="the provider's name of the model", values=text("name"), shown_default="the entry's name"
        ),
    ] = None
    targets: Annotated[
        tuple[str, ...],
        Setting(
            help="other entries of [models], models of this machine, or provider/model; "
            "where one fails the next one answers",
            values=texts("name[,name]"),
            shown_default="none",
        ),
    ] = ()
    aliases: Annotated[
        tuple[str, ...], Setting(help="further names", values=texts("name[,name]"), shown_default="none")
    ] = ()
    max_output_tokens: Annotated[
        int | None,
        Setting(
            help="the most that the provider's model writes; with a budget it is the limit of answers for "
            "which none was sent, up to 32,768",
            values=integer(1, 2**31),
            shown_default="of the provider's table, else 4096",
        ),
    ] = None
    tier: Annotated[
        TierName,
        Setting(
            help="service tier that is requested from the provider, and whose price is booked",
            values=one_of(TierName),
        ),
    ] = "standard"
    batches: Annotated[
        BatchName,
        Setting(
            help="how lines of batches are answered: each by a request of its own, or by the provider's own "
            "batches, which cost about half and take up to a day",
            values=one_of(BatchName),
        ),
    ] = "lines"
    max_attempts: Annotated[
        int, Setting(help="attempts for a request, at all targets together", values=integer(1, 10))
    ] = 3
    on_break: Annotated[
        BreakName,
        Setting(
            help="what happens if an answer breaks off: an error, or a target that can continues the text; "
            "tool calls, reasoning, constraints and several choices always end with the error",
            values=one_of(BreakName),
        ),
    ] = "error"
    hedge: Annotated[
        bool,
        Setting(
            help="also ask the next target if the first has sent nothing for longer than in 95 % of its "
            "requests; for at most 5 % of requests",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    cache: Annotated[
        bool,
        Setting(
            help="with [cache]: cache its answers to requests with temperature 0, although the provider "
            "might answer differently the next time",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    drop: Annotated[
        tuple[str, ...],
        Setting(
            help="parameters that are left out with a warning where a target cannot honor them",
            values=texts("name[,name]"),
            shown_default="none",
        ),
    ] = ()
    route: Annotated[
        str,
        Setting(help="policy that orders the targets for each request; see Routing", values=text("policy")),
    ] = "ordered"
    privacy: Annotated[
        PrivacyName,
        Setting(
            help="where requests with personal data go: anywhere, to this machine only, or elsewhere after "
            "it was replaced, and put back in the answer",
            values=one_of(PrivacyName),
            shown_default='off, local with the route "privacy"',
        ),
    ] = "off"
    detector: Annotated[
        str | None,
        Setting(
            help="model of this machine that finds names and places besides the patterns of personal data",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    classifier: Annotated[
        str | None,
        Setting(
            help="classifier or embedder of this machine that labels requests",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    tasks: Annotated[
        Mapping[str, object],
        Setting(
            help="target of each label of the classifier; others go to the first target",
            values=OBJECT,
            shown_default="none",
        ),
    ] = {}
    hard: Annotated[
        tuple[str, ...],
        Setting(
            help="labels of the classifier that need the last target",
            values=texts("label[,label]"),
            shown_default="hard",
        ),
    ] = ("hard",)
    effort: Annotated[
        str | None,
        Setting(
            help="reasoning effort of what goes to the last target, where the request has none",
            values=text("level"),
            shown_default="the model's",
        ),
    ] = None
    cheaper_below: Annotated[
        float,
        Setting(help="part of a budget that is left below which the cheapest target is first", values=_SHARE),
    ] = 0.5
    local_below: Annotated[
        float, Setting(help="part of a budget below which only this machine answers", values=_SHARE)
    ] = 0.1
    score: Annotated[
        ScoreName,
        Setting(
            help="what is compared with the certified threshold: the mean or least log-probability of the "
            "small answer's tokens, the least lead over the second token, or the verifier's score",
            values=one_of(ScoreName),
        ),
    ] = "logprob"
    verifier: Annotated[
        str | None,
        Setting(
            help="classifier of this machine that reads question and answer; its first label is approval",
            values=text("name"),
            shown_default="none",
        ),
    ] = None
    compare: Annotated[
        CompareName,
        Setting(
            help="when a free text counts as right: equal, equal but for case and white space, or with most "
            "words in common; choices and JSON must be equal",
            values=one_of(CompareName),
        ),
    ] = "equal"
    audit: Annotated[
        float,
        Setting(help="part of accepted small answers that the large model answers too", values=_SHARE),
    ] = 0.02
    context: Annotated[
        int | None,
        Setting(
            help="tokens that prompt and answer of a provider's model may have",
            values=integer(1, 100_000_000, "tokens"),
            shown_default="not known",
        ),
    ] = None


PROVIDER_SETTINGS: Mapping[str, Setting] = table_of(ProviderSettings)
REMOTE_MODEL_SETTINGS: Mapping[str, Setting] = table_of(RemoteModelSettings)
REMOTE_MARKS = ("provider", "targets")
"""Settings by which an entry of [models] is known to be answered elsewhere."""


ROUTE_SETTINGS = (
    *("route", "detector", "classifier", "tasks", "hard", "effort", "cheaper_below", "local_below"),
    *("score", "verifier", "compare", "audit"),
)
"""Settings of a choice among targets."""


def is_remote(entry: object) -> bool:
    """Whether an entry of [models] is answered elsewhere."""
    return isinstance(entry, Mapping) and any(mark in entry for mark in REMOTE_MARKS)


def read_provider(name: str, entry: object, where: str) -> ProviderSettings:
    """The table of a provider; UsageError names what is unknown or no value."""
    return _read(ProviderSettings, PROVIDER_SETTINGS, entry, f"{where}.{name}")


def read_remote_model(name: str, entry: object, where: str) -> RemoteModelSettings:
    """An entry of [models]; UsageError names what is unknown, no value, or contradicts itself."""
    found = _read(RemoteModelSettings, REMOTE_MODEL_SETTINGS, entry, f"{where}.{name}")
    if (found.provider is None) == (not found.targets):
        raise UsageError(f"{where}.{name} has provider and targets: give one of them")
    if found.model is not None and found.provider is None:
        raise UsageError(f"{where}.{name}.model needs provider: targets have models of their own")
    if found.context is not None and found.provider is None:
        raise UsageError(f"{where}.{name}.context needs provider: targets have contexts of their own")
    given = cast("Mapping[str, object]", entry)
    alone = [key for key in ROUTE_SETTINGS if key in given and found.provider is not None]
    if alone:
        raise UsageError(f"{where}.{name}.{alone[0]} needs targets: a provider's model has no choice of them")
    if found.tier != "standard" and found.provider is None:
        raise UsageError(f"{where}.{name}.tier needs provider: targets have tiers of their own")
    if found.batches != "lines" and found.provider is None:
        raise UsageError(f"{where}.{name}.batches needs provider: targets have batches of their own")
    if found.batches != "lines" and found.tier != "standard":
        raise UsageError(f"{where}.{name} has a tier, and batches have their own: leave one of them out")
    if found.max_output_tokens is not None and found.provider is None:
        raise UsageError(
            f"{where}.{name}.max_output_tokens needs provider: targets have entries of their own"
        )
    return found


def key_variables(tables: Mapping[str, object] | None) -> list[str]:
    """The variables of the environment that tables of [providers] name for their keys."""
    entries = [
        cast("Mapping[str, object]", one) for one in (tables or {}).values() if isinstance(one, Mapping)
    ]
    return [name for entry in entries if isinstance(name := entry.get("api_key_env"), str)]


def _read(kind: type[S], rows: Mapping[str, Setting], entry: object, where: str) -> S:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no table")
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, object]", entry).items():
        row = rows[known_name(key, list(rows), f"{where}: unknown {key!r}")]
        values[key] = row.parse(value, f"{where}.{key}")
    return kind(**values)
