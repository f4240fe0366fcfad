"""All policies: those of the files of this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from headrace.config.names import nearest
from headrace.errors import UsageError
from headrace.gateway import policies
from headrace.gateway.policies.policy import RoutePolicy

_OTHERS = ("policy", "registry")


@cache
def all_policies() -> Mapping[str, RoutePolicy]:
    """By name, sorted."""
    names = sorted(one.name for one in pkgutil.iter_modules(policies.__path__) if one.name not in _OTHERS)
    found = [importlib.import_module(f"{policies.__name__}.{name}").POLICY for name in names]
    return {one.name: one for one in found}


def policy_named(name: str, where: str) -> RoutePolicy:
    """The policy of that name; UsageError names those that there are."""
    known = all_policies()
    if name not in known:
        near = nearest(name, list(known))
        raise UsageError(f"{where} is {name!r:.100}, which is no policy{near}: {', '.join(known)}")
    return known[name]
