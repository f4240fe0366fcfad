"""Terminal output of `headrace bench savings`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from headrace.cli.terminal import print_table
from headrace.economy.lever_bill import LeverBill, LeverLine, LeverQuality
from headrace.economy.savings.engine_run import StackRun
from headrace.economy.savings.study import SavingsStudy

MILLION = 10**6
NANO = 10**9
GOAL = 0.6  # what a stack of layers should save
BAR = 24  # characters of the whole cost


def print_study(found: SavingsStudy, *, usd: float, assumed: bool, api: str | None) -> None:
    """The bill, what layers share, the engine's runs, and what of it was measured."""
    bill = found.bill
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds.items())
    print(f"{bill.requests:,} recorded requests ({kinds}; {found.repeated} repeated), dollars per million\n")
    _print_bill(bill, "all on the large model, one at a time")
    saved = bill.base_nano - bill.total_nano
    print(
        f"\nsaved {bill.saved:.1%} [{bill.low:.1%}, {bill.high:.1%}]; the parts sum to "
        f"{sum(line.saves_nano for line in bill.lines):,} of {saved:,} nano-dollars for these requests"
    )
    for pair in bill.pairs:
        kind = "save the same" if pair.share < 0 else "help each other"
        print(f"{pair.one} and {pair.other} {kind}: {pair.share:+.1%} of the cost together")
    print("\nthe same bill beside the large model served as usual (batching and prefix cache on):\n")
    _print_bill(found.usual, "large model as usual")
    print(f"\n{_verdict(found)}")
    if found.engine:
        _print_engine(found.engine)
    _print_sources(found, usd=usd, assumed=assumed, api=api)


def _verdict(found: SavingsStudy) -> str:
    """Whether the goal is met against either baseline, and by lossy layers within their bounds."""
    above = [
        line.name
        for line in found.bill.lines
        if line.quality is not None and line.quality.upper > line.quality.bound
    ]
    wrong = [
        f"{line.name} ({line.quality.rate:.1%})"
        for line in found.bill.lines
        if line.quality is not None and line.quality.rate > line.quality.bound
    ]
    quality = f"above their bound of quality: {', '.join(above)}" if above else "the bounds of quality hold"
    if wrong:
        quality += f", but in this traffic more than that was worse: {', '.join(wrong)}"
    parts = [
        f"-{GOAL:.0%} {'is' if bill.saved >= GOAL else 'is not'} reached against {name} ({bill.saved:.1%})"
        for bill, name in ((found.bill, "one at a time"), (found.usual, "the usual service"))
    ]
    return f"{', and '.join(parts)}; {quality}"


def _print_bill(bill: LeverBill, baseline: str) -> None:
    header = ("", "SAVES", "95 %", "$", "ALONE", "REMOVED", "BILL AFTER", "", "WORSE ANSWERS")
    rows = [(baseline, "", "", _usd(bill, bill.base_nano), "", "", "100.0%", "█" * BAR, "")]
    rows += [_row(bill, line) for line in bill.lines]
    alone = sum(line.alone_nano for line in bill.lines)
    removed = sum(line.removed_nano for line in bill.lines)
    rows.append(
        (
            "all layers",
            f"{bill.saved:.1%}",
            f"{bill.low:.1%} to {bill.high:.1%}",
            _usd(bill, bill.total_nano),
            f"Σ {_share(bill, alone)}",
            f"Σ {_share(bill, removed)}",
            f"{bill.total_nano / bill.base_nano:.1%}",
            _bar(bill, bill.total_nano),
            "",
        )
    )
    print_table(rows, header=header)


def _row(bill: LeverBill, line: LeverLine) -> tuple[str, ...]:
    return (
        f"  {line.name}",
        _share(bill, line.saves_nano),
        f"{_plain(line.low)} to {_plain(line.high)}",
        _usd(bill, -line.saves_nano),
        _share(bill, line.alone_nano),
        _share(bill, line.removed_nano),
        f"{line.stacked_nano / bill.base_nano:.1%}",
        _bar(bill, line.stacked_nano),
        _quality(line.quality),
    )


def _plain(share: float) -> str:
    return f"{share if abs(share) >= 0.0005 else 0.0:.1%}"


def _share(bill: LeverBill, nano: int) -> str:
    return _plain(nano / bill.base_nano)


def _usd(bill: LeverBill, nano: int) -> str:
    amount = nano / NANO * MILLION / bill.requests
    return f"{amount:,.2f}" if abs(amount) >= 0.005 else "0.00"


def _bar(bill: LeverBill, nano: int) -> str:
    filled = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    return filled * max(1, round(BAR * nano / bill.base_nano))


def _quality(quality: LeverQuality | None) -> str:
    if quality is None:
        return "none"
    if not quality.count:
        return "answers nothing: not certified"
    kept = "" if quality.upper <= quality.bound else f" (above {quality.bound:.0%})"
    return f"{quality.worse} of {quality.count:,}, at most {quality.upper:.1%}{kept}"


def _print_engine(runs: Sequence[StackRun]) -> None:
    print("\non real engines, layers switched on one after the other:\n")
    base = runs[0].measured_nano
    rows = [
        (
            f"+ {run.added}" if place else "no layer",
            f"{run.measured_nano / base:.1%}",
            f"{run.simulated_nano / base:.1%}",
            f"{run.error:+.1%}",
        )
        for place, run in enumerate(runs)
    ]
    print_table(rows, header=("", "MEASURED", "SIMULATED", "ERROR"))
    errors = sorted(abs(run.error) for run in runs)
    print(
        f"\nthe engine saved {1 - runs[-1].measured_nano / base:.1%}; the simulator's error is "
        f"{errors[len(errors) // 2]:.1%} in the median and {errors[-1]:.1%} at most"
    )


def _print_sources(found: SavingsStudy, *, usd: float, assumed: bool, api: str | None) -> None:
    before, after = found.first_token_s
    print(f"\nfirst token at the 95th percentile: {before:.2f} s without layers, {after:.2f} s with all")
    print(
        f"certified: the small model answers {found.answered_small:.1%} of the requests, the student "
        f"{found.answered_student:.1%}"
    )
    speeds = "; ".join(
        f"{name} {1000 * prompt:.0f} / {1000 * token:.1f}" for name, (prompt, token) in found.seconds.items()
    )
    print(f"measured here: ms of a prompt of 256 tokens / of a token alone: {speeds}")
    price = f"${usd:g} per hour of this machine" + (" (assumed: set node_usd_per_hour)" if assumed else "")
    print(f"assumed: {price}; hedging has a second, idle machine")
    print(
        f"  the large model is {api} at its list price"
        if api
        else "  the large model has random weights: its speed is measured, and no drafts are tried on it"
    )
    print("  its answers are right, and formats change them as they change the small one's")
    sets = f"{found.bill.simulated:,} sets of layers were simulated"
    print(f"intervals resample requests and rounds of the calibration; {sets}")
