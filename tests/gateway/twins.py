"""Pairs of questions that look alike and have different answers."""

from __future__ import annotations

from collections.abc import Iterator

CITIES = ("Paris", "London", "Rome", "Berlin", "Madrid", "Oslo", "Vienna", "Lisbon", "Prague", "Dublin")
NAMES = ("Anna", "Bob", "Clara", "David", "Emma", "Frank", "Greta", "Henry", "Ida", "Jack")
UNITS = (("kilometers", "miles"), ("Celsius", "Fahrenheit"), ("kilograms", "pounds"), ("euros", "dollars"))
TENSES = (("was", "will be"), ("arrived", "arrives"), ("has paid", "will pay"), ("sent", "is sending"))
LANGUAGES = (
    ("Where is my card?", "Wo ist meine Karte?"),
    ("Where is my card?", "Où est ma carte ?"),
    ("Can I pay in cash?", "¿Puedo pagar en efectivo?"),
    ("Close my account", "Chiudi il mio conto"),
    ("chat", "Chat"),
)


def twins() -> Iterator[tuple[str, str, str]]:
    """Of each pair the kind and both texts."""
    for number in range(2, 102):
        yield "number", f"transfer {number} euros to my savings", f"transfer {number + 1} euros to my savings"
    for number, name in enumerate(NAMES * 8):
        city = CITIES[number % 7]
        yield (
            "negation",
            f"{number}: does {name} live in {city}?",
            f"{number}: does {name} not live in {city}?",
        )
    for first in CITIES:
        for second in CITIES:
            if first != second:
                yield "order", f"flights from {first} to {second}", f"flights from {second} to {first}"
    for number in range(25):
        for one, other in UNITS:
            yield "unit", f"how far are {number} {one} from here", f"how far are {number} {other} from here"
    for number in range(20):
        for one, other in TENSES:
            yield "tense", f"order {number} {one} on Monday", f"order {number} {other} on Monday"
    for number in range(10):
        for one, other in LANGUAGES:
            yield "language", f"[{number}] {one}", f"[{number}] {other}"
