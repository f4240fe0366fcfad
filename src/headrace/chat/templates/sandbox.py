"""The Jinja environment of chat templates: what checkpoints need, with every operation bounded."""

from __future__ import annotations

from collections.abc import Iterable
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import meta, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from headrace.chat.templates.filters import budget_of, filters, raise_exception
from headrace.chat.templates.limits import check_binop, check_str_method
from headrace.chat.templates.render_budget import VALUE_LIMIT_BYTES
from headrace.errors import TemplateError

NODE_LIMIT = 20_000
_CAPTURED = "_captured_block"

_STR_METHODS = """
    capitalize casefold center count endswith expandtabs find format index isalnum isalpha isascii isdecimal
    isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip
    partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines
    startswith strip swapcase title upper zfill
    """
_LOOP_ATTRIBUTES = """
    changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0
    """
_ATTRIBUTES: dict[type, frozenset[str]] = {
    str: frozenset(_STR_METHODS.split()),
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
    LoopContext: frozenset(_LOOP_ATTRIBUTES.split()),
    Cycler: frozenset(["current", "next", "reset"]),
}


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with resource limits.

    Attributes, methods and filters are allow-listed; `include`, `import` and `extends` find nothing. Every
    value that a template creates is charged to the rendering's Budget, which is stored in the context.
    """

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        # Not optimized: Jinja would evaluate constant expressions while compiling, before there is a
        # budget.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, _Generation]
        )
        self.filters = filters()
        names = cast(dict[str, Any], self.globals)  # pyright: ignore[reportUnknownMemberType]
        del names["lipsum"]
        names["namespace"] = _PlainNamespace
        names["raise_exception"] = raise_exception

    def compile_template(self, source: str) -> tuple[Template, frozenset[str]]:
        """Compile a template with checks inserted; returns it with the variables that it reads.

        Raises TemplateError, jinja2.TemplateSyntaxError, and the errors of Python's compiler for sources
        that are nested too deeply.
        """
        tree = self.parse(source)
        count = sum(1 for _ in tree.find_all(nodes.Node))
        if count > NODE_LIMIT:
            raise TemplateError(f"the chat template has {count:,} syntax nodes, the limit is {NODE_LIMIT:,}")
        checked = cast(nodes.Template, _CheckInserter().visit(tree)).set_environment(self)
        code = self.compile(cast(nodes.Template, checked), filename="<template>")
        reads = meta.find_undeclared_variables(cast(nodes.Template, checked))
        return Template.from_code(self, code, self.make_globals(None)), frozenset(reads)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a block or a macro."""
        held = list(pieces)
        if sum(map(len, held)) > VALUE_LIMIT_BYTES:
            raise output_too_long(VALUE_LIMIT_BYTES)
        return "".join(held)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow-list by type: all other attributes are unreachable."""
        if attr.startswith("_"):
            return False
        for kind, names in _ATTRIBUTES.items():
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, Namespace)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise immediately: Jinja would render a forbidden attribute as an empty string."""
        raise SecurityError(f"attribute {attribute[:60]!r} of {type(obj).__name__!r} is not for templates")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operator, rejected before evaluation if the result would be too large."""
        budget = budget_of(context)
        budget.tick()
        check_binop(budget, operator, left, right)
        return budget.admit(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of a macro, method or global function."""
        budget = budget_of(__context)
        budget.tick()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        if isinstance(method, BuiltinMethodType) and isinstance(method.__self__, str):
            check_str_method(budget, str(method.__self__), method.__name__, args, kwargs)
        else:  # macros with varargs, dict(), namespace(): arguments become parts of a value
            budget.weigh((args, kwargs))
        return budget.admit(super().call(__context, __obj, *args, **kwargs))


def output_too_long(limit: int) -> TemplateError:
    """The error for output of more than `limit` characters."""
    return TemplateError(f"the chat template wrote more than {limit:,} characters: shorten the messages")


class _PlainNamespace(Namespace):
    """Jinja's namespace without printing of values, which could refer to each other."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks tokens for training; here it is an ordinary block."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja's base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CheckInserter(NodeTransformer):
    """Inserts a tick into every loop iteration, and an admit for values that compiled code creates
    without calling the sandbox: `~`, literals, slices, captured blocks.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_tick(node.lineno), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(_tick(node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "#admit", node.lineno)
        if isinstance(node.target, nodes.Name):
            return node
        # Jinja checks only for `{% set a.b = … %}` that `a.b` assigns to a namespace (not into a
        # message), so the block is captured under a name first.
        line = node.lineno
        target, node.target = node.target, nodes.Name(_CAPTURED, "store", lineno=line)
        return [node, nodes.Assign(target, nodes.Name(_CAPTURED, "load", lineno=line), lineno=line)]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "#concat", node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "#admit", node.lineno) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "#admit", node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def _admitted(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "#admit", node.lineno)

    visit_List = _admitted
    visit_Dict = _admitted


def _filtered(node: nodes.Expr | None, name: str, lineno: int) -> nodes.Filter:
    # Jinja's own parser omits the node if a filter is applied to a captured block.
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=lineno)


def _tick(lineno: int) -> nodes.Filter:
    return _filtered(nodes.Const(None, lineno=lineno), "#tick", lineno)
