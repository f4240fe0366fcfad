"""A server under attack goes on serving others, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attack_driver import families, run_attacks


@pytest.mark.alone
@pytest.mark.parametrize("family", families())
def test_attacks(family: str, record_property: Callable[[str, object], None]) -> None:
    outcomes = list(run_attacks(families()[family]))
    grown_mib, slowdown = max(one.grown_mib for one in outcomes), max(one.slowdown for one in outcomes)
    record_property(
        "figures",
        f"{len(outcomes)} attacks; the server grew by at most {grown_mib:.0f} MiB, its neighbor's slowest "
        f"request took {slowdown:.1f} times as long as before",
    )
    assert not [f"{one.attack.name}: {one.failure}" for one in outcomes if one.failure]
