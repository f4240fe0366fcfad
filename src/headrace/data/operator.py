"""What a function of SQL that a model answers is: its arguments, its type, and how rows become values."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from msgspec import Struct

from headrace.config.names import nearest
from headrace.data.function_names import FUNCTIONS
from headrace.data.guard import StatementRefused
from headrace.data.model_work import StatementWork
from headrace.data.questions import Argument, CallSite, Constant, Value

Arguments = tuple[str, ...]
"""Of one row, no constant among them and none NULL."""


class RowValue(Struct, frozen=True):
    """The value of one of the rows that were asked for. `cut`: its text ended at max_tokens."""

    index: int
    value: Value
    cut: bool = False


class RowCost(Struct, frozen=True):
    """Tokens of a row: those of its prompts, and the most that may be generated, in so many requests. Where
    `exact` is false, prompts have at most so many. `estimate` is of prompt tokens where they are a bound of a
    remote model, `nano_usd` the most that one costs; None where it costs this machine's time, or where
    `unpriced` says why no price is known."""

    prompt_tokens: int
    max_output: int = 0
    requests: int = 1
    exact: bool = True
    estimate: int | None = None
    nano_usd: int | None = None
    unpriced: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether somebody else bills it."""
        return self.nano_usd is not None or bool(self.unpriced)


class KeptParts(Protocol):
    """Values of parts of rows that are computed one by one, kept beyond the statement."""

    def find(self, rows: Sequence[Arguments]) -> dict[Arguments, tuple[Value, bool]]:
        """Of each part that is kept the value, and whether it was cut."""
        ...

    def keep(self, values: Sequence[tuple[Arguments, RowValue]]) -> None:
        """Keep some."""
        ...


class SqlOperator(ABC):
    """A call with its constants. `identity` is what the values depend on besides the model and the row."""

    type: str = "VARCHAR"
    """DuckDB's."""
    model: str | None = None
    keeps: bool = True
    """Whether the same arguments always give the same value."""
    is_condition: bool = False
    max_rows: int | None = None
    """Different rows that a statement may have at most, besides what its limits allow."""
    parts: KeptParts | None = None
    """Set before anything is computed."""

    def __init__(self, site: CheckedCall) -> None:
        self.site = site
        self.model = site.text_option("model")

    @property
    def identity(self) -> Sequence[object]:
        """Of constants and options, as MessagePack can write it."""
        return [self.site.operator, self.site.constants, self.site.options]

    @abstractmethod
    async def open(self, work: StatementWork) -> str:
        """Find the model before anything is computed; what names its weights and settings, "" where nothing
        does. InvalidRequest where none can do this."""

    @abstractmethod
    async def cost(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost]:
        """Of each row. InvalidRequest where the model cannot read one, which is too long for instance."""

    async def bounds(self, work: StatementWork, rows: Sequence[Arguments]) -> list[RowCost] | None:
        """The most that each row takes, where that is quicker to say than `cost` and the model can certainly
        read each; None otherwise."""
        return None

    @abstractmethod
    def compute(self, work: StatementWork, rows: Sequence[Arguments]) -> AsyncGenerator[Sequence[RowValue]]:
        """The values in any order, as they come. What cannot be computed raises, or where the call says so
        has the value None and is counted."""


class CheckedCall:
    """The arguments and options of a call, checked. `varying` are the places of arguments that vary."""

    def __init__(self, given: CallSite) -> None:
        """StatementRefused for a function or option that there is not."""
        found = FUNCTIONS.get(given.function.lower())
        if found is None:
            raise StatementRefused(f"the function {given.function[:100]!r} may not be used")
        self.function, self.operator = given.function.lower(), found.operator
        self.options: dict[str, Constant] = {name.lower(): value for name, value in given.options.items()}
        arguments = list(enumerate(given.arguments))
        for name in found.leading:
            if not arguments or not arguments[0][1].constant:
                raise self.refused(f"the first argument is the {name}, as a constant")
            self.options[name] = arguments.pop(0)[1].value
        self.arguments: list[tuple[int, Argument]] = arguments

    @property
    def varying(self) -> tuple[int, ...]:
        """Places in the statement of what varies: these are the rows. NULL is among them."""
        return tuple(place for place, one in self.arguments if not one.constant or one.value is None)

    @property
    def constants(self) -> list[Constant]:
        """The constants, with None for what varies."""
        return [one.value if one.constant else None for _, one in self.arguments]

    def check_options(self, known: Sequence[str]) -> None:
        """Refuse options besides `known` and those of every function."""
        every = ("model", "on_error", *known)
        for name in self.options:
            if name not in every:
                raise self.refused(f"there is no option {name[:100]!r}{nearest(name, every)}")
        if self.options.get("on_error", "fail") not in ("fail", "null"):
            raise self.refused("on_error is 'fail' or 'null'")

    @property
    def failed_is_null(self) -> bool:
        """Whether a row that cannot be computed is NULL; otherwise it ends the statement."""
        return self.options.get("on_error") == "null"

    def take_constant(self, place: int, what: str) -> Constant:
        """The argument at a place, which must be a constant, and is no argument of rows any more."""
        if (
            len(self.arguments) <= place
            or not (one := self.arguments[place][1]).constant
            or one.value is None
        ):
            raise self.refused(f"argument {place + 1} is {what}, as a constant")
        del self.arguments[place]
        return one.value

    def check_count(self, least: int, most: int | None, usage: str) -> None:
        """Refuse another number of arguments."""
        count = len(self.arguments)
        if count < least or (most is not None and count > most):
            raise self.refused(f"it has {count} argument{'s' * (count != 1)}: write {usage}")

    def texts(self, row: Arguments) -> list[str]:
        """All arguments of a row, constants in their places."""
        given = iter(row)
        return [_text_of(one.value) if one.constant else next(given) for _, one in self.arguments]

    def text_option(self, name: str) -> str | None:
        """An option that is a text."""
        value = self.options.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refused(f"{name} is {value!r:.80}: write a text")
        return value

    def number_option(
        self, name: str, default: float | None, least: float, most: float, *, whole: bool = True
    ) -> Any:
        """An option that is a number from `least` to `most`; NULL is the default."""
        value = self.options.get(name)
        value = default if value is None else value
        fits = isinstance(value, int) or (not whole and isinstance(value, float))
        if value is None or (fits and not isinstance(value, bool) and least <= cast("float", value) <= most):
            return value
        raise self.refused(f"{name} is {value!r:.80}: write a number from {least:,} to {most:,}")

    def refused(self, cause: str) -> StatementRefused:
        """An error of this call."""
        return StatementRefused(f"{self.function}(): {cause}", param="sql")


def _text_of(value: Constant) -> str:
    return value if isinstance(value, str) else str(value)


def operator_of(given: CallSite) -> SqlOperator:
    """The operator of a call, its constants checked. StatementRefused."""
    site = CheckedCall(given)
    module = importlib.import_module(f"headrace.data.operators.{site.operator}")
    make = cast("Callable[[CheckedCall], SqlOperator]", module.OPERATOR)
    return make(site)


def labels_of(site: CheckedCall, value: Constant) -> list[str]:
    """A list of texts, or Snowflake's list of objects with a `label`."""
    if not isinstance(value, list):
        raise site.refused("the labels are a list of texts, such as ['yes', 'no']")
    labels = [
        cast("Mapping[str, object]", one).get("label") if isinstance(one, Mapping) else one for one in value
    ]
    if not all(isinstance(one, str) for one in labels):
        raise site.refused("the labels are a list of texts, such as ['yes', 'no']")
    return cast("list[str]", labels)
