"""From a constraint to llguidance's list of grammars."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from headrace.grammar.constraint import MAX_CHOICES, MAX_LEVELS, MAX_NESTING, Constraint
from headrace.grammar.json_schema import schema_text
from headrace.grammar.patterns import lark_regex, nesting
from headrace.grammar.structural_tags import structural_tag_grammar
from headrace.grammar.token_table import GrammarTokens

if TYPE_CHECKING:
    from llguidance import LLMatcher

COMPILER_STACK_BYTES = 64 * 2**20
MAX_LEXER_STATES = 50_000  # 1 to 2 kB each
MAX_ROW_ITEMS = 5_000
"""Of the parser, at one place of an output: some 1,200 properties that may be left out. The time of a mask
grows with its square, and is about 20 ms here."""
MAX_STEP_ITEMS = 200_000
_DEFINITION = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^:\n]*:", re.MULTILINE)
_stack_size = threading.Lock()

_Result = TypeVar("_Result")


def on_large_stack(work: Callable[[], _Result]) -> _Result:
    """Run the compiler where hostile nesting within the limits cannot end the process.

    RuntimeError where it fails in a way that it does not report, a Rust panic for instance.
    """
    results: list[_Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # a panic is no Exception
            failures.append(error)

    with _stack_size:
        before = threading.stack_size(COMPILER_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="headrace-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failures:
        raise RuntimeError(str(failures[0])[:200]) from failures[0]
    return results[0]


def compile_grammar(constraint: Constraint, special_ids: Mapping[str, int]) -> str:
    """llguidance's JSON for a constraint; GrammarError where it is not well formed.

    `special_ids` are the tokens that no text spells, by their spelling.
    """
    grammar = _grammar(constraint, special_ids)
    if constraint.after is None:
        return json.dumps({"grammars": [grammar]})
    start = {"lark_grammar": "start: /[ \\t\\r\\n]{0,8}/ @body"}
    return json.dumps({"grammars": [start, {**grammar, "name": "body"}]})


def new_state(constraint: Constraint, grammar: str, tokens: GrammarTokens) -> LLMatcher:
    """The start of what `compile_grammar` made of a constraint; GrammarError where that fails."""
    from llguidance import LLMatcher, LLParserLimits  # a tenth of a cold start, and few requests need it

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        max_items_in_row=MAX_ROW_ITEMS,
        step_max_items=MAX_STEP_ITEMS,
        verbose_errors=False,
    )
    try:
        state = on_large_stack(lambda: LLMatcher(tokens.trie, grammar, log_level=0, limits=limits))
    except RuntimeError as error:
        raise constraint.error(f"cannot be compiled: the compiler failed ({error})") from error
    state.compute_bitmask()  # what fails at once fails here, beside the loop
    if state.is_error():
        raise constraint.error(f"cannot be compiled: {first_lines(state.get_error())}")
    return state


def is_parser_error(message: str) -> bool:
    """Whether llguidance's parser met a limit, which it meets whatever its lexer has found out before."""
    return message.lower().startswith("parser error")


def first_lines(message: str) -> str:
    """What llguidance says, without the state of its parser."""
    if message.startswith("oneOf constraints are not supported"):  # its remedy is none of ours
        return (
            "schema keyword 'oneOf' is only supported where no two alternatives can hold at once, as with "
            "another `const` in each for one required property: use anyOf"
        )
    return " ".join(message.split("<state>")[0].split())[:400]


def _grammar(constraint: Constraint, special_ids: Mapping[str, int]) -> dict[str, object]:
    text, name = constraint.text, constraint.name
    if constraint.kind == "json_object":
        return {"json_schema": json.loads(schema_text({"type": "object"}, param=name))}
    if constraint.kind == "json_schema":
        closes = constraint.disable_additional_properties
        written = schema_text(_json(constraint), param=name, disable_additional_properties=closes)
        return {"json_schema": json.loads(written)}
    if constraint.kind == "choice":
        return {"lark_grammar": _choices(constraint)}
    if constraint.kind == "structural_tag":
        return {"lark_grammar": structural_tag_grammar(constraint, _json(constraint), special_ids)}
    _check_nesting(constraint)
    if constraint.kind == "regex":
        return {"lark_grammar": f"start: /{lark_regex(text)}/"}
    if text.strip().lower() == "sql":  # a grammar by name, which some expect
        raise constraint.error(
            "is no grammar: for SQL give the tables instead, as sql={TABLE: [COLUMN, …]} in Python, over HTTP"
            ' as structured_outputs: {"sql": {"tables": {TABLE: [COLUMN, …]}}}'
        )
    if constraint.kind == "ebnf":
        return {"lark_grammar": _lark_of_ebnf(constraint)}
    return {"lark_grammar": text}


def _choices(constraint: Constraint) -> str:
    choices = _json(constraint)
    if not isinstance(choices, list) or not choices:
        raise constraint.error("must be a list of one or several texts")
    texts = cast("list[object]", choices)
    if len(texts) > MAX_CHOICES:
        raise constraint.error(f"has {len(texts):,} entries, at most {MAX_CHOICES:,} are allowed")
    if not all(isinstance(text, str) and text for text in texts):
        raise constraint.error("has an entry that is not a text, or is empty")
    # One terminal: as alternatives of a rule each would be an item of the parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(
        json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts)
    )


def _json(constraint: Constraint) -> object:
    try:
        return json.loads(constraint.text)
    except (ValueError, RecursionError) as error:
        raise constraint.error(f"is not JSON: {str(error)[:200]}") from None


def _lark_of_ebnf(constraint: Constraint) -> str:
    from llguidance.gbnf_to_lark import any_to_lark  # heavy, and few requests need it

    try:
        return any_to_lark(constraint.text)
    except Exception as error:  # its parser raises all sorts
        raise constraint.error(f"cannot be read as GBNF: {str(error)[:200]}") from None


def _check_nesting(constraint: Constraint) -> None:
    """Refuse brackets that are nested so deeply that a parser might run out of stack.

    Brackets in quotes and classes count too: what is left is more than anyone writes.
    """
    deepest = nesting(constraint.text)
    if deepest > MAX_NESTING:
        raise constraint.error(f"nests brackets {deepest} levels deep, at most {MAX_NESTING} are allowed")
    definitions = len(_DEFINITION.findall(constraint.text))
    if definitions * (deepest + 1) > MAX_LEVELS:
        raise constraint.error(
            f"has {definitions:,} definitions with brackets up to {deepest} levels deep: definitions times "
            f"levels may be {MAX_LEVELS:,}"
        )
