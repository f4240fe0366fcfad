"""Random statements with functions that models answer, over `mails` (id, body, person) and `people` (id,
name)."""

from __future__ import annotations

import random
from collections.abc import Iterator


def random_statements(count: int, seed: int) -> Iterator[str]:
    """So many; what they return does not depend on the order in which rows are read."""
    for number in range(count):
        yield _Growth(random.Random(f"{seed}-{number}")).statement()


class _Growth:
    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn

    def _pick(self, *given: str) -> str:
        return self._drawn.choice(given)

    def statement(self) -> str:
        shapes = (
            *(self._plain, self._plain, self._limited, self._limited, self._grouped, self._having),
            *(self._joined, self._with, self._nested, self._exists, self._union, self._aggregate),
            *(self._folded, self._semantic),
        )
        return self._drawn.choice(shapes)()

    def _text(self, depth: int = 1) -> str:
        """An argument."""
        plain = ["body", "upper(body)", "body || ' ' || person", "'folder ' || id % 3", "NULLIF(body, 'x')"]
        if depth and self._drawn.random() < 0.2:
            return self._value(depth - 1)
        return self._pick(*plain)

    def _value(self, depth: int = 1) -> str:
        """A text by a model."""
        text = self._text(depth)
        return self._pick(
            f"ai('Say:', {text}, max_tokens := {self._drawn.randint(1, 3)})",
            f"ai({text}, max_tokens := 2)",
            f"classify({text}, ['files', 'people', 'weather'])",
            f"redact({text})",
            f"round(similarity({text}, 'files'), 6)::VARCHAR",
        )

    def _condition(self) -> str:
        return self._pick(
            f"ai_filter('Is it about files?', {self._text(0)})",
            f"ai_filter('Is it even?', {self._text(0)})",
            f"ai_probability('Is it?', {self._text(0)}) > 0.5",
            f"classify({self._text(0)}, ['files', 'people']) = 'files'",
        )

    def _cheap(self) -> str:
        return self._pick("id < 20", "id % 2 = 0", "person <> 2", "length(body) > 10", "id BETWEEN 3 AND 17")

    def _where(self) -> str:
        parts = [self._cheap() for _ in range(self._drawn.randint(0, 2))]
        parts += [self._condition() for _ in range(self._drawn.randint(0, 2))]
        self._drawn.shuffle(parts)
        if len(parts) > 1 and self._drawn.random() < 0.2:
            parts = [f"({parts[0]} OR {parts[1]})", *parts[2:]]
        if parts and self._drawn.random() < 0.15:
            parts[0] = f"NOT ({parts[0]})"
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _columns(self) -> str:
        found = ["id"]
        for _ in range(self._drawn.randint(0, 2)):
            value = self._value()
            found.append(
                self._pick(
                    value,
                    f"upper({value})",
                    f"CASE WHEN {self._cheap()} THEN {value} ELSE 'none' END",
                    f"coalesce(NULLIF(body, body), {value})",
                    f"{self._condition()} AS yes",
                )
            )
        return ", ".join(found)

    def _plain(self) -> str:
        return f"SELECT {self._columns()} FROM mails{self._where()}"

    def _limited(self) -> str:
        order = self._pick("", "", " ORDER BY id", " ORDER BY id DESC", f" ORDER BY {self._value(0)}, id")
        offset = self._pick("", "", " OFFSET 2")
        return f"{self._plain()}{order} LIMIT {self._drawn.randint(1, 9)}{offset}"

    def _grouped(self) -> str:
        value = self._value(0)
        where = self._where()
        return f"SELECT {value} AS v, count(*), min(id) FROM mails{where} GROUP BY {value}"

    def _having(self) -> str:
        having = self._pick("count(*) > 2", self._condition(), f"min(id) < 9 AND {self._condition()}")
        return f"SELECT body, id, person, count(*) FROM mails{self._where()} GROUP BY ALL HAVING {having}"

    def _aggregate(self) -> str:
        value = self._value(0)
        return (
            f"SELECT count(*) FILTER (WHERE {self._condition()}), max({value}), "
            f"ai('Sum up:', string_agg(body, ',' ORDER BY id), max_tokens := 2) FROM mails{self._where()}"
        )

    def _folded(self) -> str:
        order = self._pick("", " ORDER BY id DESC", " ORDER BY person")
        only = self._pick("", f" FILTER (WHERE {self._cheap()})", f" FILTER (WHERE {self._condition()})")
        value = self._pick(
            f"ai_agg({self._text()}, 'What is it?', max_tokens := 2{order}){only}",
            f"ai_summarize(DISTINCT {self._text(0)}, max_tokens := 2){only}",
            f"upper(ai_agg({self._text(0)}, 'Say:', max_tokens := 1)) || max(body)",
        )
        group = self._pick("", "person, ", "ai_filter('Is it?', body) AS yes, ")
        return f"SELECT {group}{value} FROM mails{self._where()}{' GROUP BY 1' if group else ''}"

    def _semantic(self) -> str:
        least = self._pick("", "", ", min_similarity := 0.2")
        call = f"ai_join({self._text(0)}, name, 'They are alike.', max_pairs := 500{least})"
        kind = self._pick(" JOIN", " JOIN", " LEFT JOIN", ",")
        more = self._pick("", f" AND {self._cheap()}", f" AND {self._condition()}", " AND person = number")
        if kind == ",":
            where = f" WHERE {call}{more}"
        else:
            on = self._pick(f"{call}{more}", f"{call}{more}", f"({call}{more}) OR number = 9")
            where = f" ON {on}{self._where()}"
        value = self._pick("id, name", f"id, name, {self._value(0)}", "count(*), min(id)")
        return f"SELECT {value} FROM mails{kind} people{where}"

    def _joined(self) -> str:
        kind = self._pick("JOIN", "LEFT JOIN")
        on = self._pick("mails.person = people.number", "mails.person = people.number AND people.number > 1")
        return f"SELECT {self._columns()}, name FROM mails {kind} people ON {on}{self._where()}"

    def _with(self) -> str:
        return f"WITH c AS ({self._plain()}) SELECT count(*), min(id), max(id) FROM c"

    def _nested(self) -> str:
        inner = f"SELECT *, {self._value(0)} AS v FROM mails{self._where()}"
        return f"SELECT id, v, count(*) FROM ({inner}) GROUP BY ALL"

    def _exists(self) -> str:
        inner = f"SELECT 1 FROM people WHERE people.number = mails.person AND {self._condition()}"
        return f"SELECT {self._columns()} FROM mails WHERE EXISTS ({inner}) AND {self._cheap()}"

    def _union(self) -> str:
        return f"SELECT body, {self._value(0)} FROM mails UNION SELECT body, {self._value(0)} FROM mails"
