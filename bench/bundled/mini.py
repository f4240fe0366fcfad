"""What `mini` does with everyday questions over plain tables, and with tool calls: rates for its card.

    .venv/bin/python bench/bundled/mini.py

A statement is right where SQLite gives the rows that the expected one gives. Everything is greedy.
"""

# ruff: noqa: E501
from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import LLM

TABLES: Mapping[str, tuple[Sequence[str], Sequence[tuple[Any, ...]]]] = {
    "players": (
        ("name", "team", "home city", "points"),
        [("Ana", "Lions", "Rome", 31), ("Ben", "Lions", "Oslo", 12), ("Cid", "Bears", "Rome", 25),
         ("Dora", "Bears", "Paris", 7), ("Eve", "Hawks", "Oslo", 40)],
    ),
    "orders": (
        ("id", "customer", "product", "price", "status"),
        [(1, "Smith", "lamp", 20, "open"), (2, "Jones", "desk", 150, "shipped"), (3, "Smith", "chair", 60, "shipped"),
         (4, "Brown", "lamp", 25, "open"), (5, "Jones", "lamp", 20, None)],
    ),
    "employees": (
        ("name", "department", "salary", "city"),
        [("Ida", "sales", 3000, "Bern"), ("Jan", "sales", 3500, "Rome"), ("Kim", "research", 5000, "Bern"),
         ("Leo", "research", 4200, "Oslo"), ("Mia", "legal", 3900, "Rome")],
    ),
}  # fmt: skip
QUESTIONS = [
    ("players", "Which players are in the Lions?", "SELECT name FROM players WHERE team = 'Lions'"),
    ("players", "How many players are there?", "SELECT COUNT(*) FROM players"),
    ("players", "What is the highest number of points?", "SELECT MAX(points) FROM players"),
    ("players", "Which team does Eve play for?", "SELECT team FROM players WHERE name = 'Eve'"),
    ("players", "List all players.", "SELECT name FROM players"),
    ("players", "Who has more than 20 points?", "SELECT name FROM players WHERE points > 20"),
    ("players", "What is the home city of Dora?", "SELECT \"home city\" FROM players WHERE name = 'Dora'"),
    ("players", "How many players does each team have?", "SELECT team, COUNT(*) FROM players GROUP BY team"),
    ("players", "Who has the most points?", "SELECT name FROM players ORDER BY points DESC LIMIT 1"),
    ("players", "What teams are there?", "SELECT DISTINCT team FROM players"),
    ("orders", "Show all open orders.", "SELECT * FROM orders WHERE status = 'open'"),
    ("orders", "What did Smith order?", "SELECT product FROM orders WHERE customer = 'Smith'"),
    ("orders", "How many orders are shipped?", "SELECT COUNT(*) FROM orders WHERE status = 'shipped'"),
    ("orders", "What is the total price of all orders?", "SELECT SUM(price) FROM orders"),
    ("orders", "What is a lamp's average price?", "SELECT AVG(price) FROM orders WHERE product = 'lamp'"),
    ("orders", "Which customers ordered a lamp?", "SELECT customer FROM orders WHERE product = 'lamp'"),
    ("orders", "Which order is the cheapest?", "SELECT id FROM orders ORDER BY price, id LIMIT 1"),
    ("orders", "Which orders have no status?", "SELECT id FROM orders WHERE status IS NULL"),
    ("orders", "What is the status of order 2?", "SELECT status FROM orders WHERE id = 2"),
    ("orders", "Which products cost between 20 and 60?",
     "SELECT product FROM orders WHERE price BETWEEN 20 AND 60"),
    ("employees", "Who works in sales?", "SELECT name FROM employees WHERE department = 'sales'"),
    ("employees", "What is the salary of Kim?", "SELECT salary FROM employees WHERE name = 'Kim'"),
    ("employees", "What is the average salary?", "SELECT AVG(salary) FROM employees"),
    ("employees", "How many employees live in Bern?", "SELECT COUNT(*) FROM employees WHERE city = 'Bern'"),
    ("employees", "Which employees earn less than 4000?", "SELECT name FROM employees WHERE salary < 4000"),
    ("employees", "Sort the employees by salary.", "SELECT * FROM employees ORDER BY salary"),
    ("employees", "Whose name starts with K?", "SELECT name FROM employees WHERE name LIKE 'K%'"),
    ("employees", "Who works in research in Oslo?",
     "SELECT name FROM employees WHERE department = 'research' AND city = 'Oslo'"),
]  # fmt: skip
TOOLS = [
    ("get_weather", "The weather in a city", "city"),
    ("send_email", "Send an email to a person", "to"),
    ("set_alarm", "Set an alarm", "time"),
    ("convert_currency", "Convert an amount to another currency", "amount"),
    ("play_song", "Play a song", "title"),
]
CALLS = [
    ("What is the weather in Paris?", "get_weather", "Paris"),
    ("Is it raining in Tokyo?", "get_weather", "Tokyo"),
    ("Do I need an umbrella in London today?", "get_weather", "London"),
    ("Send an email to Anna.", "send_email", "Anna"),
    ("Write a mail to bob@example.com", "send_email", "bob@example.com"),
    ("Wake me at 7:30", "set_alarm", "7:30"),
    ("Set an alarm for 6 am", "set_alarm", "6 am"),
    ("Convert 20 euros", "convert_currency", "20"),
    ("Play Yesterday", "play_song", "Yesterday"),
    ("I want to hear Imagine", "play_song", "Imagine"),
]
SYSTEM = "You are a helpful assistant."


def main() -> None:
    """Print the rates."""
    database = sqlite3.connect(":memory:")
    for table, (columns, rows) in TABLES.items():
        names = ", ".join(f'"{column}"' for column in columns)
        database.execute(f"CREATE TABLE {table} ({names})")
        places = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
    with LLM("mini") as llm:
        for held in (False, True):
            for where in ("none", "system", "user"):
                answers = [answer(llm, table, question, held, where) for table, question, _ in QUESTIONS]
                got = [rows_of(database, text) for text in answers]
                right = sum(
                    rows is not None and rows == rows_of(database, wanted)
                    for rows, (*_, wanted) in zip(got, QUESTIONS, strict=True)
                )
                print(
                    f"SQL, grammar {held}, system message {where}: {right} right, "
                    f"{sum(rows is not None for rows in got)} executable of {len(QUESTIONS)}"
                )
        print(f"tool calls: {sum(called(llm, *call) for call in CALLS)} right of {len(CALLS)}")


def answer(llm: LLM, table: str, question: str, held: bool, where: str) -> str:
    """The statement for a question, with a system message in its own turn, in the user's, or without."""
    columns = TABLES[table][0]
    prompt = f"Table {table} ({', '.join(columns)})\n{question}"
    messages = [{"role": "user", "content": f"{SYSTEM}\n{prompt}" if where == "user" else prompt}]
    if where == "system":
        messages.insert(0, {"role": "system", "content": SYSTEM})
    sql = {table: columns} if held else None
    return llm.chat(messages, temperature=0, max_tokens=100, sql=sql).text


def rows_of(database: sqlite3.Connection, statement: str) -> list[str] | None:
    """What it gives, in any order; None where it cannot be executed."""
    try:
        return sorted(map(repr, database.execute(statement)))
    except sqlite3.Error:
        return None


def called(llm: LLM, remark: str, name: str, value: str) -> bool:
    """Whether the one call is to this tool, with this value."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool,
                "description": text,
                "parameters": {
                    "type": "object",
                    "properties": {argument: {"type": "string"}},
                    "required": [argument],
                },
            },
        }
        for tool, text, argument in TOOLS
    ]
    done = llm.chat([{"role": "user", "content": remark}], tools=tools, temperature=0, max_tokens=100)
    calls = done.tool_calls
    return len(calls) == 1 and calls[0].name == name and value in str(calls[0].arguments)


if __name__ == "__main__":
    main()
