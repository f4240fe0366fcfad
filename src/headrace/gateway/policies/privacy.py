"""The order of the settings, where personal data stays on this machine unless `privacy` says otherwise.

What `privacy` does is no matter of order, and holds for every policy: see `gateway/privacy.py`. This one is
for routes that want nothing else.
"""

from __future__ import annotations

from headrace.gateway.policies import ordered
from headrace.gateway.policies.policy import RoutePolicy

POLICY = RoutePolicy(name="privacy", order=ordered.POLICY.order)
