"""What a small model's answer is held to where nobody asked for more: its chat template says so by reading
the variables `sql_of_tables` and `in_scope`, and a request switches them off with false."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.chat.messages import Message
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, GrammarError, choice_constraint
from headrace.grammar.sql import sql_constraint
from headrace.grammar.sql_tables import tables_of_prompt
from headrace.weights.ngram_classifier import read_ngram_classifier

SQL_OF_TABLES, IN_SCOPE = "sql_of_tables", "in_scope"
SCOPE_FILE = "scope.safetensors"
OUTSIDE = "outside"
SURE = 0.9
"""From this probability on a task is said to be none of the model's."""
MIN_WORDS = 3
"""Fewer say too little."""
CANNOT = (
    "I cannot do that, I am a small model for shell commands, tool calls and stories: a larger model of the "
    "Hugging Face hub, a GGUF file or a provider such as OpenAI can."
)
REFUSED = (
    "the model was not asked: the task is none of those on its card. Send the template variable "
    f"{IN_SCOPE} = false to let it try"
)


def helping_constraint(
    messages: Sequence[Message], reads: frozenset[str], variables: Mapping[str, Any], folder: Path
) -> tuple[Constraint | None, str]:
    """One SELECT statement over the tables that the last message begins with; the sentence CANNOT where the
    message is a task outside of the model's card. With it a warning, empty for none.

    `reads` and `variables` are the template's; `folder` may hold a classifier of tasks.
    """
    if not reads & {SQL_OF_TABLES, IN_SCOPE} or not messages or messages[-1].role != "user":
        return None, ""
    wants_sql, judges = (_is_on(name, reads, variables) for name in (SQL_OF_TABLES, IN_SCOPE))
    text = messages[-1].content or ""
    if tables := tables_of_prompt(text):
        return _sql(tables) if wants_sql else (None, "")
    is_first = all(message.role != "assistant" for message in messages)  # later turns mean something else
    if judges and is_first and _is_outside(text, folder / SCOPE_FILE):
        return choice_constraint([CANNOT], param=IN_SCOPE), REFUSED
    return None, ""


def _is_on(name: str, reads: frozenset[str], variables: Mapping[str, Any]) -> bool:
    value = variables.get(name, True)
    if name in reads and not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r:.40}: give true or false", param=name)
    return name in reads and value


def _sql(tables: dict[str, list[str]]) -> tuple[Constraint | None, str]:
    try:
        return sql_constraint(tables, param=SQL_OF_TABLES), ""
    except GrammarError as error:
        return None, f"the statement is not held to the tables: {error.message}"


def _is_outside(text: str, path: Path) -> bool:
    if len(text.split()) < MIN_WORDS or not path.is_file():
        return False
    return read_ngram_classifier(path).scores(text)[OUTSIDE] >= SURE
