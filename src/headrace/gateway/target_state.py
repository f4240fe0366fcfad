"""What the gateway knows of one target while it runs: its handler, breaker and times."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.gateway.breaker import Breaker
from headrace.gateway.hedging import FirstContentTimes
from headrace.gateway.routes import LocalTarget, Target
from headrace.gateway.speed import TargetSpeed
from headrace.providers.remote_handler import RemoteHandler


@dataclass(slots=True, eq=False)
class TargetState:
    """One target; `remote` is None for a model of this machine."""

    target: Target
    remote: RemoteHandler | None
    breaker: Breaker = field(default_factory=Breaker)
    times: FirstContentTimes = field(default_factory=FirstContentTimes)
    speed: TargetSpeed = field(default_factory=TargetSpeed)
    in_flight: int = 0
    """Attempts that have not ended."""

    @property
    def name(self) -> str:
        """Its name in replies and errors."""
        return self.target.name

    @property
    def provider(self) -> str:
        """Its provider, "" for this machine."""
        return "" if isinstance(self.target, LocalTarget) else self.target.provider.name

    @property
    def tier(self) -> str:
        """The way of processing that its provider is asked for."""
        return "standard" if isinstance(self.target, LocalTarget) else self.target.tier

    @property
    def provider_model(self) -> str:
        """The provider's name of the model."""
        return self.target.name if isinstance(self.target, LocalTarget) else self.target.model
