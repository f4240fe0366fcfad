"""Templates of the generated workload."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

_SLOTS: Mapping[str, Sequence[str]] = {
    "city": ("Lisbon", "Oslo", "Athens", "Cairo", "Lima", "Dublin", "Prague", "Hanoi", "Quito", "Perth"),
    "item": ("lamp", "keyboard", "jacket", "kettle", "monitor", "backpack", "headset", "drill", "tent"),
    "when": ("yesterday", "on Monday", "last week", "this morning", "two days ago", "in May"),
    "person": ("Ana Ruiz", "Tom Berg", "Mei Lin", "Omar Haddad", "Eva Novak", "Raj Patel", "Lena Fox"),
    "number": tuple(str(number) for number in range(4100, 9900, 137)),
    "amount": ("12.50", "49.99", "130.00", "8.75", "250.00", "19.90", "74.20"),
    "greeting": ("", "Hello, ", "Hi there, ", "Good morning, ", "Please help: ", "Quick question: "),
    "closing": ("", " Thanks.", " Thank you very much.", " Please answer soon.", " I am a bit annoyed."),
}
_RULES = (
    "Answer in at most three sentences. Be polite and precise. Name the article of the handbook that the "
    "answer rests on. Where the handbook says nothing, say so and offer to ask a colleague. Never promise a "
    "refund or a date of delivery. Never repeat personal data. Write amounts with two decimals and the "
    "currency."
)
ASSISTANTS: Sequence[tuple[str, Sequence[str]]] = (
    (
        f"You are the assistant of a shop for household goods. {_RULES} Deliveries take three to five days. "
        "Goods can be returned for thirty days, unused and in their box. A warranty lasts two years.",
        (
            "How do I clean the {item} that I bought {when}?",
            "Can I return a {item} without its box if I bought it {when}?",
            "Which {item} would you recommend for a small flat in {city}?",
            "Do you deliver a {item} to {city}, and what does that cost?",
        ),
    ),
    (
        f"You are the assistant of a travel agency. {_RULES} Flights can be changed until one day before the "
        "departure for a fee of 40.00 euros. Trains cannot be changed. Hotels can be canceled for two days.",
        (
            "I want to go from {city} to {city} {when}: what do you suggest?",
            "Can I still change my flight to {city} that I booked {when}?",
            "What should one see in {city} in a weekend?",
        ),
    ),
    (
        f"You are the assistant of a company's support for its own staff. {_RULES} Passwords last ninety "
        "days. New devices need the approval of a manager. Visitors are announced one day before.",
        (
            "My {item} has not worked since {when}: whom do I ask?",
            "How do I announce {person} as a visitor in {city}?",
            "I need a new {item} for the office in {city}. What do I have to do?",
        ),
    ),
)
LABEL_INSTRUCTION = (
    "Say what the customer wants. Answer with exactly one of: track_order, cancel_order, refund, "
    "change_address, payment_failed, reset_password, invoice, opening_hours. Do not explain."
)
INTENTS: Mapping[str, Sequence[str]] = {
    "track_order": (
        "{greeting}where is my {item} that I ordered {when}?{closing}",
        "{greeting}has order {number} left your warehouse yet?{closing}",
        "{greeting}when does the {item} arrive in {city}?{closing}",
        "{greeting}the parcel {number} should have been here {when}.{closing}",
    ),
    "cancel_order": (
        "{greeting}I no longer need the {item}, stop order {number}.{closing}",
        "{greeting}please cancel what I ordered {when}.{closing}",
        "{greeting}can I take back my order of a {item} before it is sent?{closing}",
    ),
    "refund": (
        "{greeting}the {item} is broken and I want my {amount} back.{closing}",
        "{greeting}I sent the {item} back {when}, where is my money?{closing}",
        "{greeting}please return the {amount} that I paid for order {number}.{closing}",
    ),
    "change_address": (
        "{greeting}I have moved to {city}, send the {item} there.{closing}",
        "{greeting}order {number} has my old street on it.{closing}",
        "{greeting}how do I give you a new delivery address in {city}?{closing}",
    ),
    "payment_failed": (
        "{greeting}my card was declined when I paid {amount}.{closing}",
        "{greeting}the payment of order {number} did not go through {when}.{closing}",
        "{greeting}I cannot pay for the {item}, the page shows an error.{closing}",
    ),
    "reset_password": (
        "{greeting}I forgot my password and cannot sign in.{closing}",
        "{greeting}the link for a new password does not work since {when}.{closing}",
        "{greeting}how do I get into my account again?{closing}",
    ),
    "invoice": (
        "{greeting}I need the invoice of order {number} for my taxes.{closing}",
        "{greeting}please send a receipt for the {item}, {amount}.{closing}",
        "{greeting}the bill from {when} has the wrong name on it.{closing}",
    ),
    "opening_hours": (
        "{greeting}is your shop in {city} open on Sunday?{closing}",
        "{greeting}until when can I collect the {item} in {city}?{closing}",
        "{greeting}at what time do you open in {city}?{closing}",
    ),
}
SQL_INSTRUCTION = (
    "Turn the question into one SQL statement for the table. Use only columns of the table. Quote texts with "
    "single quotes, and names with spaces with double quotes. Do not add a semicolon, an alias or a comment."
)
_TABLES: Sequence[tuple[str, Mapping[str, Sequence[str]], Sequence[str]]] = (
    ("players", {"name": _SLOTS["person"], "team": ("Lions", "Bears", "Hawks", "Wolves")}, ("points", "age")),
    ("flights", {"carrier": ("Aero", "Nordic", "Delta"), "origin": _SLOTS["city"]}, ("delay", "seats")),
    ("orders", {"customer": _SLOTS["person"], "item": _SLOTS["item"]}, ("amount", "weight")),
    ("hotels", {"name": ("Plaza", "Astoria", "Royal", "Garden"), "city": _SLOTS["city"]}, ("rooms", "price")),
    ("books", {"title": ("Dune", "Emma", "Ulysses", "Faust"), "author": _SLOTS["person"]}, ("pages", "year")),
    ("employees", {"name": _SLOTS["person"], "office": _SLOTS["city"]}, ("salary", "age")),
    ("songs", {"title": ("Hello", "Yesterday", "Thunder"), "artist": _SLOTS["person"]}, ("length", "year")),
)
_WHERE = (
    ("What is the {a} when the {b} is {v}?", "SELECT {a} FROM {t} WHERE {b} = '{v}'"),
    ("Which {a} has the {b} {v}?", "SELECT {a} FROM {t} WHERE {b} = '{v}'"),
    ("Tell me the {a} with the {b} {v}", "SELECT {a} FROM {t} WHERE {b} = '{v}'"),
    ("How many {a} have the {b} {v}?", "SELECT COUNT({a}) FROM {t} WHERE {b} = '{v}'"),
)
_NUMBERS = (
    ("What is the largest {n}?", "SELECT MAX({n}) FROM {t}"),
    ("What is the smallest {n}?", "SELECT MIN({n}) FROM {t}"),
    ("What is the {n} when the {b} is {v}?", "SELECT {n} FROM {t} WHERE {b} = '{v}'"),
    ("What is the average {n} when the {b} is {v}?", "SELECT AVG({n}) FROM {t} WHERE {b} = '{v}'"),
    ("Which {b} has the {n} {k}?", "SELECT {b} FROM {t} WHERE {n} = {k}"),
    ("Which {b} has a {n} of more than {k}?", "SELECT {b} FROM {t} WHERE {n} > {k}"),
)
_HARD = (
    ("List every {b}, the one with the largest {n} first", "SELECT {b} FROM {t} ORDER BY {n} DESC"),
    ("How many rows are there for each {b}?", "SELECT {b}, COUNT(*) FROM {t} GROUP BY {b}"),
    ("Which {b} has the largest {n}?", "SELECT {b} FROM {t} ORDER BY {n} DESC LIMIT 1"),
)
HARD_SHARE = 0.2
EXTRACTION_INSTRUCTION = (
    "Extract the person, the order number, the item and the amount from the text. Answer with a JSON object "
    "with exactly these four keys. Write null for what is missing."
)


def filled(templates: Sequence[str], random: np.random.Generator) -> str:
    """One of the templates with its slots filled."""
    template = templates[int(random.integers(len(templates)))]
    return re.sub(r"\{(\w+)\}", lambda slot: str(random.choice(_SLOTS[slot[1]])), template)


def sql_question(random: np.random.Generator) -> tuple[str, str]:
    """A table with a question, and the statement."""
    table, words, numbers = _TABLES[int(random.integers(len(_TABLES)))]
    a, b = (str(name) for name in random.permutation(list(words)))
    n = str(random.choice(list(numbers)))
    draw = random.random()
    kinds = _HARD if draw < HARD_SHARE else _NUMBERS if draw < 0.6 else _WHERE
    question, statement = kinds[int(random.integers(len(kinds)))]
    values = {"a": a, "b": b, "n": n, "t": table, "v": str(random.choice(list(words[b])))}
    values["k"] = str(int(random.integers(2, 90)))
    columns = ", ".join((*words, *numbers))
    return f"Table {table} ({columns})\n{question.format(**values)}", statement.format(**values)


def extraction(random: np.random.Generator) -> tuple[str, str]:
    """A text with an order in it, and the JSON object."""
    person, number, item, amount = (str(random.choice(_SLOTS[name])) for name in _ORDER)
    city, when = str(random.choice(_SLOTS["city"])), str(random.choice(_SLOTS["when"]))
    text = (
        f"{person} called {when} from our shop in {city}. The {item} of order {number} was scratched when it "
        f"came, and {amount} had been paid for it. A colleague will call back."
    )
    return text, f'{{"person": "{person}", "order": {number}, "item": "{item}", "amount": {amount}}}'


_ORDER = ("person", "number", "item", "amount")
