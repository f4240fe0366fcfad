"""Questions over tables of many domains -> SQL: filters, counts, extremes, orders, groups, joins.

Statements are written as the grammar of `headrace.grammar.sql` has them: names quoted where they must be,
joined columns with their table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dialogue import Conversation, ask
from numpy.random import Generator

from data.near import Outside
from data.variants import noised
from data.words import pick, words
from headrace.grammar.sql import quoted

FILE = Path(__file__).with_name("tables.txt")
JOIN_SHARE, NOISE_SHARE, SPACED_SHARE = 0.3, 0.15, 0.15
FEWEST, MOST_EXTRA = 3, 5
_EXTRA = words("id notes created_at updated_by rank type code phone email score url currency owner version")


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its texts, or with the range of its numbers."""

    name: str
    texts: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def value(self, random: Generator) -> str:
        """One as a question says it."""
        if self.texts == ("@code",):
            letters = "".join(pick("ABCDEFGHKLMNPRSTVX", random) for _ in range(2))
            return f"{letters}{random.integers(10, 999)}"
        return pick(self.texts, random) if self.texts else str(random.integers(self.low, self.high + 1))

    @property
    def spoken(self) -> str:
        """Its name in a sentence."""
        return self.name.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of one question. `prefix` stands before its columns in a join."""

    name: str
    one: str
    columns: tuple[Column, ...]
    prefix: str = ""

    @property
    def key(self) -> Column:
        """What names a row."""
        return self.columns[0]

    def at(self, column: Column) -> str:
        """The column as the statement has it."""
        return self.prefix + quoted(column.name)

    def numbers(self) -> list[Column]:
        """Columns of numbers, but for the first."""
        return [one for one in self.columns[1:] if not one.texts and one.high]

    def texts(self) -> list[Column]:
        """Columns of texts, but for the first."""
        return [one for one in self.columns[1:] if one.texts]


def literal(column: Column, value: str) -> str:
    """A value in a statement."""
    return "'" + value.replace("'", "''") + "'" if column.texts else value


Made = tuple[str, str, str]
"""A question, what is selected, and what follows FROM."""


class Tables:
    """Draws a question; those near to a prompt of the outside set are drawn again."""

    name = "tables"

    def __init__(self, outside: Outside) -> None:
        self._tables, self._outside = read_tables(), outside

    def draw(self, random: Generator) -> Conversation:
        """A function of `random`."""
        while True:
            tables, question, statement = self.drawn(random)
            if not self._outside.is_near(question):
                break
        head = "\n".join(f"Table {one.name} ({', '.join(c.name for c in one.columns)})" for one in tables)
        asked = noised(question, random) if random.random() < NOISE_SHARE else question
        return ask(f"{head}\n{asked}", statement)

    def drawn(self, random: Generator) -> tuple[list[Table], str, str]:
        """Tables, a question over them, and its statement."""
        table = _widened(pick(self._tables, random), random)
        if random.random() < JOIN_SHARE:
            return _joined(table, _widened(pick(self._tables, random), random), random)
        question, items, rest = pick(_SINGLE, random)(table, random)
        return [table], question, f"SELECT {items} FROM {quoted(table.name)}{rest}"


def read_tables() -> list[Table]:
    """Those of the file."""
    pools: dict[str, tuple[str, ...]] = {}
    tables: list[Table] = []
    for line in FILE.read_text().splitlines():
        head, _, body = line.partition(": ")
        if head.startswith("@"):
            pools[head] = tuple(body.split("|"))
        elif body and not line.startswith("#"):
            plural, one = head.split(" ", 1)
            tables.append(Table(plural, one, tuple(_column(part, pools) for part in body.split("; "))))
    return tables


def _column(text: str, pools: dict[str, tuple[str, ...]]) -> Column:
    name, values = text.split("=")
    low, dots, high = values.partition("..")
    if dots:
        return Column(name, (), int(low), int(high))
    return Column(name, pools.get(values, tuple(values.split("|"))))


def _widened(table: Table, random: Generator) -> Table:
    """Some of its columns and some that no question is about, in another order behind the first."""
    own = [one for one in table.columns[1:] if random.random() < 0.85]
    if len(own) < FEWEST or not any(one.texts for one in own) or all(one.texts for one in own):
        own = list(table.columns[1:])
    taken = {one.name for one in table.columns}
    extra = [Column(name) for name in _EXTRA if name not in taken and random.random() < 0.4]
    others = [*own, *extra[: int(random.integers(MOST_EXTRA + 1))]]
    order = random.permutation(len(others))
    columns = (table.columns[0], *(others[at] for at in order))
    if random.random() < SPACED_SHARE:
        columns = tuple(Column(one.spoken, one.texts, one.low, one.high) for one in columns)
    return Table(table.name, table.one, columns)


def _equal(t: Table, random: Generator) -> tuple[str, str]:
    """A condition in words and in SQL."""
    column = pick(t.texts(), random)
    value = column.value(random)
    said = pick(("whose {c} is {v}", "with {c} {v}", "where the {c} is {v}", "that have {v} as {c}"), random)
    return said.format(c=column.spoken, v=value), f"{t.at(column)} = {literal(column, value)}"


def _compared(t: Table, random: Generator) -> tuple[str, str]:
    column = pick(t.numbers(), random)
    value = column.value(random)
    said, sign = pick(
        (
            ("with a {c} above {v}", ">"), ("with more than {v} {c}", ">"), ("with a {c} over {v}", ">"),
            ("with a {c} below {v}", "<"), ("with less than {v} {c}", "<"), ("with a {c} under {v}", "<"),
            ("with a {c} of at least {v}", ">="), ("with a {c} of {v} or less", "<="),
            ("with a {c} of exactly {v}", "="), ("with {c} not {v}", "!="),
        ),
        random,
    )  # fmt: skip
    return said.format(c=column.spoken, v=value), f"{t.at(column)} {sign} {value}"


def _condition(t: Table, random: Generator) -> tuple[str, str]:
    kind = random.random()
    if kind < 0.4:
        return _equal(t, random)
    if kind < 0.75:
        return _compared(t, random)
    one, two = _equal(t, random), _compared(t, random)
    word, link = pick(((" and", "AND"), (" or", "OR")), random) if random.random() < 0.3 else (" and", "AND")
    return f"{one[0]}{word} {two[0]}", f"{one[1]} {link} {two[1]}"


def _listed(t: Table, random: Generator) -> Made:
    said, where = _condition(t, random)
    if random.random() < 0.3:
        form = pick(("show all {p} {s}", "list everything about {p} {s}", "give me all {p} {s}"), random)
        return form.format(p=t.name, s=said), "*", f" WHERE {where}"
    form = pick(("which {p} are there {s}?", "{p} {s}", "list the {k} of {p} {s}", "find {p} {s}"), random)
    return form.format(p=t.name, k=t.key.spoken, s=said), t.at(t.key), f" WHERE {where}"


def _looked_up(t: Table, random: Generator) -> Made:
    column, value = pick([*t.texts(), *t.numbers()], random), t.key.value(random)
    form = pick(
        ("what is the {c} of {v}?", "{c} of {v}", "tell me the {c} of the {o} {v}", "which {c} has {v}?"),
        random,
    )
    said = form.format(c=column.spoken, v=value, o=t.one)
    return said, t.at(column), f" WHERE {t.at(t.key)} = {literal(t.key, value)}"


def _counted(t: Table, random: Generator) -> Made:
    if random.random() < 0.2:
        return pick(("how many {p} are there?", "count the {p}"), random).format(p=t.name), "COUNT(*)", ""
    said, where = _condition(t, random)
    form = pick(("how many {p} are there {s}?", "number of {p} {s}", "count {p} {s}"), random)
    return form.format(p=t.name, s=said), "COUNT(*)", f" WHERE {where}"


_WORDS = {
    "AVG": ("average", "mean"), "SUM": ("total", "sum of the"), "MAX": ("highest", "largest", "maximum"),
    "MIN": ("lowest", "smallest", "minimum"),
}  # fmt: skip


def _aggregated(t: Table, random: Generator) -> Made:
    function, column = pick(tuple(_WORDS), random), pick(t.numbers(), random)
    word, item = pick(_WORDS[function], random), f"{function}({t.at(column)})"
    if random.random() < 0.5:
        form = pick(("what is the {w} {c}?", "{w} {c} of all {p}", "give me the {w} {c}"), random)
        return form.format(w=word, c=column.spoken, p=t.name), item, ""
    said, where = _condition(t, random)
    form = pick(("what is the {w} {c} of {p} {s}?", "{w} {c} for {p} {s}"), random)
    return form.format(w=word, c=column.spoken, p=t.name, s=said), item, f" WHERE {where}"


def _extreme(t: Table, random: Generator) -> Made:
    column, most = pick(t.numbers(), random), random.random() < 0.6
    count = 1 if random.random() < 0.65 else int(random.integers(2, 11))
    word = pick(("highest", "largest", "most") if most else ("lowest", "smallest", "least"), random)
    if count == 1:
        form = pick(
            ("which {o} has the {w} {c}?", "{o} with the {w} {c}", "what {o} has the {w} {c}?"), random
        )
    else:
        form = pick(("the {n} {p} with the {w} {c}", "show the {n} {p} that have the {w} {c}"), random)
    said = form.format(o=t.one, p=t.name, w=word, c=column.spoken, n=count)
    return said, t.at(t.key), f" ORDER BY {t.at(column)}{' DESC' if most else ''} LIMIT {count}"


def _sorted(t: Table, random: Generator) -> Made:
    column, down = pick([t.key, *t.numbers()], random), random.random() < 0.4
    order = pick(("from high to low", "descending", "largest first"), random) if down else ""
    form = pick(
        ("list the {k} of all {p} by {c} {d}", "sort the {p} by {c} {d}", "{p} ordered by {c} {d}"), random
    )
    said = " ".join(form.format(k=t.key.spoken, p=t.name, c=column.spoken, d=order).split())
    items = t.at(t.key) if form.startswith("list") else "*"
    return said, items, f" ORDER BY {t.at(column)}{' DESC' if down else ''}"


def _grouped(t: Table, random: Generator) -> Made:
    by = pick(t.texts(), random)
    group = f" GROUP BY {t.at(by)}"
    if random.random() < 0.5:
        form = pick(("how many {p} are there per {b}?", "count {p} for each {b}", "{p} by {b}"), random)
        return form.format(p=t.name, b=by.spoken), f"{t.at(by)}, COUNT(*)", group
    function, column = pick(tuple(_WORDS), random), pick(t.numbers(), random)
    item, word = f"{function}({t.at(column)})", pick(_WORDS[function], random)
    if random.random() < 0.25:
        said = f"which {by.spoken} has the highest {word} {column.spoken}?"
        return said, t.at(by), f"{group} ORDER BY {item} DESC LIMIT 1"
    form = pick(("{w} {c} per {b}", "what is the {w} {c} for each {b}?", "{w} {c} of {p} by {b}"), random)
    said = form.format(w=word, c=column.spoken, b=by.spoken, p=t.name)
    return said, f"{t.at(by)}, {item}", group


def _distinct(t: Table, random: Generator) -> Made:
    column = pick(t.texts(), random)
    if random.random() < 0.4:
        return f"how many different {column.spoken}s are there?", f"COUNT(DISTINCT {t.at(column)})", ""
    form = pick(
        ("which different {c}s are there?", "every {c} only once", "all {c}s without repeats"), random
    )
    return form.format(c=column.spoken), f"DISTINCT {t.at(column)}", ""


_SINGLE: tuple[Callable[[Table, Generator], Made], ...] = (
    _listed, _listed, _looked_up, _counted, _aggregated, _extreme, _sorted, _grouped, _distinct,
)  # fmt: skip


def _joined(one: Table, many: Table, random: Generator) -> tuple[list[Table], str, str]:
    """`many` has a column for the row of `one` that it belongs to."""
    if one.name == many.name:
        many = Table(f"other_{many.name}", many.one, many.columns)
    key = Column("id") if random.random() < 0.7 else one.key
    link = Column(f"{one.one.lower()}_{key.name.replace(' ', '_')}")
    first = one.columns if key is one.key else (key, *(c for c in one.columns if c.name != "id"))
    others = tuple(c for c in many.columns[1:] if c.name != link.name)
    a = Table(one.name, one.one, one.columns, f"{quoted(one.name)}.")
    b = Table(many.name, many.one, (many.key, *others), f"{quoted(many.name)}.")
    shown = [Table(one.name, one.one, first), Table(many.name, many.one, (many.key, link, *others))]
    on = f" ON {b.prefix}{quoted(link.name)} = {a.prefix}{quoted(key.name)}"
    question, items, rest = _join_question(a, b, random)
    statement = f"SELECT {items} FROM {quoted(b.name)} JOIN {quoted(a.name)}{on}{rest}"
    return shown, question, statement


def _join_question(a: Table, b: Table, random: Generator) -> Made:
    kind = int(random.integers(6))
    said, where = _equal(a, random)
    name = a.key.value(random)
    owner = f"{a.at(a.key)} = {literal(a.key, name)}"
    if kind == 0:
        form = pick(("which {p} belong to the {o} {v}?", "{p} of {o} {v}", "list the {p} of {v}"), random)
        return form.format(p=b.name, o=a.one, v=name), b.at(b.key), f" WHERE {owner}"
    if kind == 1:
        form = pick(("{p} of {q} {s}", "which {p} have {q} {s}?", "show {p} of the {q} {s}"), random)
        return form.format(p=b.name, q=a.name, s=said), b.at(b.key), f" WHERE {where}"
    if kind == 2:
        form = pick(("how many {p} does each {o} have?", "number of {p} per {o}"), random)
        return form.format(p=b.name, o=a.one), f"{a.at(a.key)}, COUNT(*)", f" GROUP BY {a.at(a.key)}"
    if kind == 3:
        value = b.key.value(random)
        form = pick(("which {o} does {v} belong to?", "what is the {o} of {v}?", "{o} of {v}"), random)
        rest = f" WHERE {b.at(b.key)} = {literal(b.key, value)}"
        return form.format(o=a.one, v=value), a.at(a.key), rest
    column = pick(b.numbers(), random)
    function = pick(tuple(_WORDS), random)
    word, item = pick(_WORDS[function], random), f"{function}({b.at(column)})"
    if kind == 4:
        form = pick(("{w} {c} of the {p} per {o}", "what is the {w} {c} of {p} for each {o}?"), random)
        said = form.format(w=word, c=column.spoken, p=b.name, o=a.one)
        return said, f"{a.at(a.key)}, {item}", f" GROUP BY {a.at(a.key)}"
    form = pick(("what is the {w} {c} of {p} whose {o} is {v}?", "{w} {c} of the {p} of {v}"), random)
    return form.format(w=word, c=column.spoken, p=b.name, o=a.one, v=name), item, f" WHERE {owner}"
