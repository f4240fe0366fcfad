"""Models that are answered elsewhere: entries of `[models]` as routes, each an ordered list of targets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from headrace.config.names import nearest
from headrace.config.providers import RemoteModelSettings, is_remote, read_remote_model
from headrace.errors import UsageError
from headrace.gateway.policies.registry import policy_named
from headrace.inference.result import ChoiceResult
from headrace.providers.target import Provider, RemoteTarget

Worse = Callable[[ChoiceResult, ChoiceResult], Awaitable[bool | None]]
"""Whether a small answer is worse than the large one; None where nobody can tell."""
_PLAIN = ("ordered", "fixed")


class LocalTarget(Struct, frozen=True):
    """A model of this machine."""

    name: str

    @property
    def key(self) -> tuple[str, ...]:
        """As `RemoteTarget.key`."""
        return (self.name,)


Target = RemoteTarget | LocalTarget


class Route(Struct, frozen=True, kw_only=True):
    """A model that clients can name. `targets` are tried in order, `max_attempts` times together; see
    `RemoteModelSettings`."""

    name: str
    targets: tuple[Target, ...]
    settings: RemoteModelSettings
    created_s: int = 0
    gate: str = ""
    """Under which its certificate is kept, where that is not its name."""
    worse: Worse | None = None
    """What compares answers in audits, where that is no matter of equality."""

    @property
    def gate_name(self) -> str:
        """Under which its certificate is kept."""
        return self.gate or self.name

    @property
    def owners(self) -> Sequence[str]:
        """Who answers: the providers of its targets, headrace for this machine."""
        names = [
            target.provider.name if isinstance(target, RemoteTarget) else "headrace"
            for target in self.targets
        ]
        return list(dict.fromkeys(names))


def plain_route(model: str) -> Route:
    """A model of this machine as a route."""
    return Route(name=model, targets=(LocalTarget(model),), settings=RemoteModelSettings(targets=(model,)))


def read_routes(
    entries: Mapping[str, object],
    providers: Mapping[str, Provider],
    *,
    serves: Callable[[str], bool] = lambda name: True,
    where: str = "models",
    now_s: int = 0,
) -> list[Route]:
    """The routes among the entries of `[models]`; `serves` knows the other models of this machine. UsageError
    names the entry that is wrong."""
    settings = {
        name: read_remote_model(name, entry, where) for name, entry in entries.items() if is_remote(entry)
    }
    local = frozenset(entries) - frozenset(settings)
    reader = _Reader(settings, local, providers, serves, where)
    routes: list[Route] = []
    taken = set(local)
    for name, one in settings.items():
        targets = tuple({target.key: target for target in reader.targets(name, ())}.values())
        policy = policy_named(one.route, f"{where}.{name}.route")
        problem = policy.check(one, [target.name for target in targets])
        if problem is not None:
            raise UsageError(f"{where}.{name}: {problem}")
        for known in (name, *one.aliases):
            if known in taken:
                raise UsageError(f"two models are named {known!r}: rename one of them in [{where}]")
            taken.add(known)
        routes.append(Route(name=name, targets=targets, settings=one, created_s=now_s))
    return routes


class _Reader(Struct):
    settings: Mapping[str, RemoteModelSettings]
    local: frozenset[str]
    providers: Mapping[str, Provider]
    serves: Callable[[str], bool]
    where: str

    def targets(self, name: str, seen: Sequence[str]) -> list[Target]:
        """The targets of an entry, those of entries that it names in its place."""
        if name in seen:
            raise UsageError(f"{self.where}: {' -> '.join((*seen, name))} leads back to itself")
        one = self.settings[name]
        if one.provider is not None:
            provider = self._provider(one.provider, f"{self.where}.{name}.provider")
            if one.tier != "standard" and one.tier not in provider.row.tiers:
                known = ", ".join(provider.row.tiers) or "none"
                raise UsageError(
                    f"{self.where}.{name}.tier is {one.tier!r}, which {provider.name} does not take (it "
                    f"takes: {known}): leave it out"
                )
            if one.batches == "provider" and not provider.row.batches:
                raise UsageError(
                    f"{self.where}.{name}.batches: {provider.name} has no batches that are known here: "
                    "leave it out"
                )
            return [
                RemoteTarget(
                    name=name,
                    provider=provider,
                    model=one.model or name,
                    context=one.context,
                    max_output_tokens=one.max_output_tokens,
                    tier=one.tier,
                    batches=one.batches == "provider",
                )
            ]
        return [target for word in one.targets for target in self._named(word, name, (*seen, name))]

    def _named(self, word: str, name: str, seen: Sequence[str]) -> list[Target]:
        if word in self.settings:
            self._check_nested(word, name)
            return self.targets(word, seen)
        provider, slash, model = word.partition("/")
        if slash and model and word not in self.local and provider in self.providers:
            return [RemoteTarget(name=word, provider=self.providers[provider], model=model)]
        if word not in self.local and not self.serves(word):
            raise UsageError(
                f"{self.where}.{name}.targets: {word!r} is no entry of [{self.where}], no model of this "
                "machine, and no PROVIDER/MODEL of a table of [providers]"
            )
        return [LocalTarget(word)]

    def _check_nested(self, word: str, name: str) -> None:
        """Its targets take the place of an entry: a policy or a rule of its own would be lost."""
        one = self.settings[word]
        if one.targets and (one.route not in _PLAIN or one.privacy != "off"):
            raise UsageError(
                f"{self.where}.{name}.targets: {word!r} chooses by {one.route!r} among targets of its own, "
                "which a target cannot: name its targets here"
            )

    def _provider(self, name: str, where: str) -> Provider:
        if name not in self.providers:
            known = nearest(name, list(self.providers)) if self.providers else ""
            raise UsageError(f"{where}: there is no table [providers.{name}]{known}")
        return self.providers[name]
