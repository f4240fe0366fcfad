"""SQL over given tables: a Lark grammar of one SELECT statement that names no other tables or columns.

SQLite prepares every text of the grammar on tables of these names. Keywords are in capitals; a name is in
double quotes unless it is a word of small letters, digits and underscores that is no keyword.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, cast

from headrace.grammar.constraint import Constraint, GrammarError

MAX_TABLES: Final = 32
MAX_COLUMNS: Final = 2000
"""Of all tables together."""
MAX_NAME: Final = 128
MAX_JOINED_TABLES: Final = 8
"""With more tables none are joined: each pair needs rules of its own."""
_BARE: Final = re.compile(r"[a-z_][a-z0-9_]*")
_UNWRITABLE: Final = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]")
_WORDS: Final = """
abort action add after all alter always analyze and as asc attach autoincrement before begin between
by cascade case cast check collate column commit conflict constraint create cross current
current_date current_time current_timestamp database default deferrable deferred delete desc detach
distinct do drop each else end escape except exclude exclusive exists explain fail false filter
first following for foreign from full generated glob group groups having if ignore immediate in
index indexed initially inner insert instead intersect into is isnull join key last left like limit
match materialized natural no not nothing notnull null nulls of offset on or order others outer over
partition plan pragma preceding primary query raise range recursive references regexp reindex
release rename replace restrict returning right rollback row rows savepoint select set table temp
temporary then ties to transaction trigger true unbounded union unique update user using vacuum
values view virtual when where window with within without
"""
# Those of DuckDB that SQLite does not have.
_DUCKDB_WORDS: Final = """
analyse anti any array asof asymmetric authorization binary both collation concurrently describe freeze
generated grant ilike initially interval lambda lateral leading localtime localtimestamp map only overlaps
pivot pivot_longer pivot_wider placing positional qualify semi session_user show similar some summarize
symmetric tablesample trailing try_cast unnest unpivot user variadic verbose
"""
KEYWORDS: Final = frozenset((_WORDS + _DUCKDB_WORDS).split())

# The space before a keyword is part of its terminal: the lexer does not go back, and " OR" begins " ORDER".
# Repetitions are bounded, so that no statement meets a limit of SQLite (an expression 1,000 levels deep).
_SHARED: Final = r"""
FROM: /[ \n]FROM /
WHERE: /[ \n]WHERE /
GROUP_BY: /[ \n]GROUP BY /
HAVING: /[ \n]HAVING /
ORDER_BY: /[ \n]ORDER BY /
LIMIT: /[ \n]LIMIT /
JOIN: /[ \n](LEFT )?JOIN /
ON: /[ \n]ON /
LINK: /[ \n](AND|OR) /
DIRECTION: " ASC" | " DESC"
FUNCTION: "SUM\u0028" | "AVG\u0028" | "MIN\u0028" | "MAX\u0028"
COMPARISON: " = " | " != " | " <> " | " < " | " <= " | " > " | " >= "
NULLNESS: " IS NULL" | " IS NOT NULL"
NUMBER: /-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?/
TEXT: /'([^'\x00-\x1f\x7f]|''){0,200}'/
WHOLE: /0|[1-9][0-9]{0,8}/
literal: NUMBER | TEXT
among: (" IN \u0028" | " NOT IN \u0028") literal (", " literal){0,63} "\u0029"
between: (" BETWEEN " | " NOT BETWEEN ") literal " AND " literal
like: (" LIKE " | " NOT LIKE ") TEXT
limit: LIMIT WHOLE (" OFFSET " WHOLE)?
"""
# `@` stands for the scope: a table, or two that are joined. An aggregate needs GROUP BY to be in ORDER BY.
_SCOPE: Final = r"""
select_@: "SELECT " "DISTINCT "? items_@ FROM from_@ (WHERE where_@)? (group_@ | order_@?) limit?
items_@: "*" | item_@ (", " item_@){0,15}
item_@: column_@ | aggregate_@
aggregate_@: ("COUNT\u0028" ("*" | of_@) | FUNCTION of_@) "\u0029"
of_@: "DISTINCT "? column_@
where_@: term_@ (LINK term_@){0,15}
term_@: test_@ | ("\u0028" | "NOT \u0028") test_@ (LINK test_@){0,7} "\u0029"
test_@: column_@ (COMPARISON (literal | column_@) | among | between | like | NULLNESS)
group_@: GROUP_BY column_@ (", " column_@){0,7} (HAVING having_@ (LINK having_@){0,7})? ranks_@?
ranks_@: ORDER_BY rank_@ (", " rank_@){0,7}
having_@: aggregate_@ (COMPARISON literal | between)
rank_@: item_@ DIRECTION?
order_@: ORDER_BY column_@ DIRECTION? (", " column_@ DIRECTION?){0,7}
"""


def sql_constraint(tables: object, *, after: str | None = None, param: str | None = None) -> Constraint:
    """A constraint to one SELECT statement over `tables`, a mapping from names to lists of columns.

    GrammarError for names that cannot be written, and beyond the limits above.
    """
    name = param or "sql"
    return Constraint("lark", _grammar(_checked_tables(tables, name)), after, name)


def quoted(name: str) -> str:
    """A name as the grammar writes it."""
    if _BARE.fullmatch(name) and name not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def _checked_tables(tables: object, param: str) -> dict[str, list[str]]:
    if not isinstance(tables, Mapping) or not tables:
        raise GrammarError(f"{param} has no tables: give lists of columns by table", param=param)
    given = cast("Mapping[object, object]", tables)
    names = _checked_names(given, "table", param)
    if len(names) > MAX_TABLES:
        raise GrammarError(f"{param} has {len(names):,} tables, at most {MAX_TABLES} may be", param=param)
    lists: dict[str, Sequence[object]] = {}
    for name in names:
        columns = given[name]
        if isinstance(columns, str | bytes) or not isinstance(columns, Sequence) or not columns:
            raise GrammarError(f"{param}: the table {_shown(name)} has no list of columns", param=param)
        lists[name] = cast("Sequence[object]", columns)
    count = sum(map(len, lists.values()))
    if count > MAX_COLUMNS:
        raise GrammarError(
            f"{param} has {count:,} columns, at most {MAX_COLUMNS:,} are allowed: leave out those that "
            "no question needs",
            param=param,
        )
    return {
        name: _checked_names(columns, f"in the table {_shown(name)} the column", param)
        for name, columns in lists.items()
    }


def _checked_names(names: Iterable[object], what: str, param: str) -> list[str]:
    checked: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name.strip():
            cause = "is empty, or no text"
        elif len(name) > MAX_NAME:
            cause = f"has {len(name):,} characters, at most {MAX_NAME} are allowed"
        elif _UNWRITABLE.search(name):
            cause = "has a control character, or half of a surrogate pair"
        elif name.lower() in checked:
            cause = "is there twice (SQL does not distinguish capitals from small letters)"
        else:
            checked[name.lower()] = name
            continue
        raise GrammarError(f"{param}: {what} {_shown(name)} {cause}", param=param)
    return list(checked.values())


def _shown(name: object) -> str:
    return repr(name if isinstance(name, str) and len(name) <= 40 else str(name)[:40] + "…")


def _grammar(tables: Mapping[str, Sequence[str]]) -> str:
    scopes = {f"t{at}": name for at, name in enumerate(tables)}
    rules = [_SHARED, *_column_rules(list(tables.values()))]
    for scope, table in scopes.items():
        rules += [_SCOPE.replace("@", scope), f"from_{scope}: {_literal(quoted(table))}"]
    if 1 < len(tables) <= MAX_JOINED_TABLES:
        for scope, table in scopes.items():
            qualified = (f"{quoted(table)}.{quoted(column)}" for column in tables[table])
            rules.append(f"Q_{scope.upper()}: {_either(qualified)}")
        for one, other in combinations(scopes, 2):
            rules += _join_rules(one, other, scopes)
            scopes = {**scopes, f"{one}{other}": ""}
    starts = " | ".join(f"select_{scope}" for scope in scopes)
    return "\n".join([f'start: ({starts}) ";"?', *rules])


def _column_rules(tables: Sequence[Sequence[str]]) -> list[str]:
    """A rule `column_` for each table.

    Columns that the same tables have share a terminal, so that no text is of two terminals. As alternatives
    of a rule each would be an item of the parser.
    """
    owners: dict[str, list[int]] = {}
    for at, columns in enumerate(tables):
        for column in columns:
            owners.setdefault(quoted(column), []).append(at)
    shared: dict[tuple[int, ...], list[str]] = {}
    for column, of in owners.items():
        shared.setdefault(tuple(of), []).append(column)
    terminals = {of: f"COLUMN{number}" for number, of in enumerate(shared)}
    return [f"{terminals[of]}: {_either(columns)}" for of, columns in shared.items()] + [
        f"column_t{at}: " + " | ".join(terminal for of, terminal in terminals.items() if at in of)
        for at in range(len(tables))
    ]


def _join_rules(one: str, other: str, tables: Mapping[str, str]) -> list[str]:
    scope, first, second = f"{one}{other}", f"Q_{one.upper()}", f"Q_{other.upper()}"
    names = [_literal(quoted(tables[side])) for side in (one, other)]
    return [
        _SCOPE.replace("@", scope),
        f"column_{scope}: {first} | {second}",
        f"from_{scope}: ({names[0]} JOIN {names[1]} | {names[1]} JOIN {names[0]}) ON on_{scope}",
        f'on_{scope}: {first} " = " {second} | {second} " = " {first}',
    ]


def _either(texts: Iterable[str]) -> str:
    return " | ".join(map(_literal, texts))


def _literal(text: str) -> str:
    """Brackets are escaped: those in texts would count as nesting, too."""
    written = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[][(){}]", lambda found: f"\\u{ord(found[0]):04x}", written)
