"""Bills by hand and by the price list; prices of the settings; what is unpriced and why."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from golden_bills import GOLDEN, NOON, Golden
from hypothesis import given
from hypothesis import strategies as st

from headrace.economy.money import nano_of, plain_usd, shown_usd, usd_of
from headrace.economy.prices import PriceBook
from headrace.economy.quantities import CLASSES, TOKEN_CLASSES, Quantities, quantities_of
from headrace.economy.rates import Rates, UnitPrice, Unpriced, rate_of
from headrace.economy.usage import read_usage
from headrace.errors import UsageError
from headrace.inference.attempts import TokenCounts

pytest.importorskip("genai_prices", reason="needs the price list: pip install 'headrace[gateway]'")
BOOK = PriceBook()
NAMES = [f"{one.provider}-{one.model}-{place}" for place, one in enumerate(GOLDEN)]


def bill(one: Golden, book: PriceBook = BOOK) -> int | None:
    usage = read_usage(json.dumps(one.usage).encode())
    word = usage.processing if one.processing == "standard" else one.processing
    found = book.bill(one.provider, one.model, usage.quantities, processing=word, unix_s=one.unix_s)
    assert found.nano_usd is not None, found.missing
    return found.nano_usd


@pytest.mark.parametrize("one", GOLDEN, ids=NAMES)
def test_bill_is_what_was_computed_by_hand(one: Golden) -> None:
    assert bill(one) == one.nano_usd


def test_each_main_provider_has_twenty_bodies() -> None:
    counts = Counter(one.provider for one in GOLDEN)
    assert min(counts[name] for name in ("openai", "anthropic", "google")) >= 20


@pytest.mark.parametrize("one", [one for one in GOLDEN if one.flavor], ids=str)
def test_the_list_reads_the_same_usage_and_bills_the_same(one: Golden) -> None:
    from genai_prices import extract_usage

    root = "usageMetadata" if one.provider == "google" else "usage"
    name = "modelVersion" if one.provider == "google" else "model"
    found = extract_usage({root: one.usage, name: one.model}, provider_id=one.provider, api_flavor=one.flavor)
    other = found.calc_price(genai_request_timestamp=datetime.fromtimestamp(one.unix_s, UTC)).total_price
    # It does not round; this bill rounds each of its lines.
    assert abs(other * 10**9 - one.nano_usd) <= Decimal(len(CLASSES)) / 2


@pytest.mark.parametrize(
    ("provider", "model", "processing", "reason"),
    [
        ("openai", "gpt-99-ultra", "standard", "no model openai/gpt-99-ultra"),
        ("openai", "gpt-4o", "turbo", "'turbo' is not known"),
        ("openai", "gpt-4o", "flex", "no price for flex"),
        ("my-openai-proxy", "gpt-4o", "standard", "no provider 'my-openai-proxy'"),
        ("", "mini", "standard", "no provider ''"),
    ],
)
def test_unknown_is_unpriced_and_says_why(provider: str, model: str, processing: str, reason: str) -> None:
    found = BOOK.bill(provider, model, Quantities(input=1), processing=processing, unix_s=NOON)
    assert found.nano_usd is None
    assert reason in found.missing


def test_a_discount_does_not_hold_before_it_began() -> None:
    before = datetime(2026, 10, 1, tzinfo=UTC).timestamp()
    found = BOOK.bill("openai", "gpt-4o", Quantities(input=1), processing="batch", unix_s=before)
    assert found.nano_usd is None and "no price for batch" in found.missing


def test_audio_without_a_price_is_not_billed_as_text() -> None:
    heard = Quantities(input=10, input_audio=100)
    found = BOOK.bill("openai", "gpt-4o-audio-preview", heard, processing="", unix_s=NOON)
    assert found.nano_usd is None and "input_audio" in found.missing


def test_prices_of_the_settings_go_first() -> None:
    book = PriceBook({
        "openai/gpt-4o": [
            {"input": 2, "output": 8},
            {"from": "2026-11-20", "input": 1, "output": 4, "cache_read": 0.1},
            {"from": "2026-11-20", "processing": "batch", "input": "0.5", "output": 2},
        ],
        "work/*": {"input": 0, "output": 0},
        "work/big": {"input": 1, "output": 1, "tiers": [{"above": 1000, "input": 2}], "web_searches": 5},
    })  # fmt: skip
    used = Quantities(input=1_000, cache_read=1_000, output=10)

    def cost(
        name: str, processing: str = "standard", unix_s: float = NOON, used: Quantities = used
    ) -> int | None:
        provider, _, model = name.partition("/")
        return book.bill(provider, model, used, processing=processing, unix_s=unix_s).nano_usd

    assert cost("openai/gpt-4o") == 1_000_000 + 100_000 + 40_000
    assert cost("openai/gpt-4o", unix_s=NOON - 86_400) == 2_000_000 + 2_000_000 + 80_000
    assert cost("openai/gpt-4o", "batch") == 500_000 + 500_000 + 20_000
    assert cost("work/small") == 0
    assert cost("work/big") == 2_000_000 + 2_000_000 + 10_000
    assert cost("work/big", used=Quantities(input=1_000, web_searches=3)) == 1_000_000 + 15_000_000
    assert cost("openai/gpt-5", used=Quantities(input=1_000)) == 1_250_000  # the list's


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("gpt-4o", {"input": 1}, "provider/model"),
        ("a/b", {"inputs": 1}, "did you mean 'input'"),
        ("a/b", {}, "has no price"),
        ("a/b", {"input": -1}, "must be dollars per 1,000,000"),
        ("a/b", {"input": "much"}, "must be dollars"),
        ("a/b", {"input": float("nan")}, "must be dollars"),
        ("a/b", {"input": True}, "must be dollars"),
        ("a/b", {"input": 1, "from": "soon"}, "from is 'soon'"),
        ("a/b", {"input": 1, "processing": "turbo"}, "processing is 'turbo'"),
        ("a/b", {"input": 1, "tiers": [{"input": 2}]}, "tiers is a list"),
        ("a/b", {"input": 1, "tiers": [{"above": 5, "output": 2}]}, "a tier has a price for output"),
        ("a/b", 3, "is a table"),
    ],
)
def test_wrong_prices_are_refused_by_name(name: str, entry: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PriceBook({name: entry})


COUNTS = st.integers(0, 3_000_000)
RATES = st.builds(
    UnitPrice,
    st.integers(0, 10**14),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**14)), max_size=2).map(
        lambda tiers: tuple(sorted(tiers))
    ),
)


@st.composite
def rate_tables(draw: st.DrawFn) -> Rates:
    classes = {"input", "output", *draw(st.sets(st.sampled_from([*CLASSES, "request"])))}
    return Rates({name: draw(RATES) for name in sorted(classes)}, "drawn", audio_as_text=draw(st.booleans()))


@given(rate_tables(), st.fixed_dictionaries(dict.fromkeys(CLASSES, COUNTS)))
def test_lines_are_rounded_alone_and_nothing_is_lost(rates: Rates, counts: dict[str, int]) -> None:
    try:
        lines = rates.bill(Quantities(**counts))
    except Unpriced:
        return
    billed = {line.name: line.quantity for line in lines if line.name != "request"}
    assert billed == {name: count for name, count in counts.items() if count}
    exact = (
        sum(
            Decimal(line.quantity)
            * (rates.of(line.name) if line.name != "request" else rates.by_class["request"]).at(
                Quantities(**counts).input_side
            )
            for line in lines
        )
        / 10**6
    )
    assert abs(exact - sum(line.nano_usd for line in lines)) <= Decimal(len(lines)) / 2


@given(rate_tables(), st.integers(0, 2 * 10**6), st.integers(0, 10**6), st.data())
def test_no_division_into_classes_costs_more_than_the_worst_case(
    rates: Rates, given_tokens: int, output: int, data: st.DataObject
) -> None:
    used_input = data.draw(st.integers(0, given_tokens))
    used_output = data.draw(st.integers(0, output))
    read = data.draw(st.integers(0, used_input))
    written = data.draw(st.integers(0, used_input - read))
    hour = data.draw(st.integers(0, used_input - read - written))
    thought = data.draw(st.integers(0, used_output))
    used = Quantities(
        input=used_input - read - written - hour,
        cache_read=read,
        cache_write=written,
        cache_write_1h=hour,
        output=used_output - thought,
        reasoning=thought,
    )
    try:
        cost = sum(line.nano_usd for line in rates.bill(used))
    except Unpriced:
        return
    assert cost <= rates.most(quantities_of(TokenCounts(input=given_tokens, output=output)))


def test_classes_do_not_overlap_in_sums() -> None:
    each = Quantities(**{name: 10**place for place, name in enumerate(TOKEN_CLASSES)})
    plain = each.tokens
    assert (
        sum(getattr(plain, name) for name in TokenCounts.__struct_fields__)
        == (10 ** len(TOKEN_CLASSES) - 1) // 9
    )


@given(st.integers(-(10**18), 10**18))
def test_money_is_exact(nano: int) -> None:
    assert nano_of(usd_of(nano)) == nano == nano_of(plain_usd(nano))


@pytest.mark.parametrize(
    ("nano", "shown"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (12_500, "$0.000013"),
        (10**9, "$1.00"),
        (-1_234_567_890_123, "-$1,234.57"),
    ],
)
def test_money_is_shown_with_the_digits_that_it_needs(nano: int, shown: str) -> None:
    assert shown_usd(nano) == shown


@pytest.mark.parametrize("wrong", ["", "x", "nan", "inf", True, None, "1e30", [1]])
def test_what_is_no_money_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="dollars"):
        nano_of(wrong)


def test_prices_finer_than_the_unit_are_refused() -> None:
    assert rate_of(Decimal("0.0375"), 10**6) == 37_500_000
    with pytest.raises(ValueError, match="steps"):
        rate_of(Decimal("1e-12"), 10**6)
