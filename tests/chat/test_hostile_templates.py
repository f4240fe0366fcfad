"""Hostile templates (endless, huge, or escaping the sandbox) raise TemplateError, in the same process and
thread.
"""

# ruff: noqa: E501 - a template reads best on one line

from __future__ import annotations

import resource
import threading
import time

import pytest

from headrace.chat.messages import Message
from headrace.chat.templates import render_budget as budget_module
from headrace.chat.templates.chat_template import SOURCE_LIMIT_BYTES, ChatTemplate
from headrace.chat.templates.render_budget import CPU_LIMIT_S, Budget
from headrace.errors import TemplateError

MESSAGES = [Message("user", "Hello"), Message("assistant", "Hi")]
BIG = "{% set big = 'x' * 5000000 %}"
DOUBLE = "{% set ns = namespace(v=START) %}{% for i in range(80) %}{% set ns.v = STEP %}{% endfor %}"


def doubling(start: str, step: str) -> str:
    return DOUBLE.replace("START", start).replace("STEP", step)


LOOPS = {
    "nested": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested_filtered": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "nested_continue": "{% for a in range(99999) %}{% for b in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
    "outputs_nothing": "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "set_block": "{% for a in range(99999) %}{% set x %}{% for b in range(99999) %}{% endfor %}{% endset %}{% endfor %}",
    "recursive_loop": "{% for x in [1, 2, 3] recursive %}{{ loop([1, 2, 3]) }}{% endfor %}",
    "macro_tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro_forever": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "block_forever": "{% block a %}{{ self.a() }}{% endblock %}",
    "caller_forever": "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
    "map_in_loop": "{% for a in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "sort_in_loop": "{% for a in range(99999) %}{% set x = range(99999) | sort(reverse=true) %}{% endfor %}",
    "select_in_loop": "{% for a in range(99999) %}{{ range(99999) | select('gt', 99999) | list | length == 1 }}{% endfor %}",
    "in_operator": "{% set l = range(90000) | list %}{% for a in range(99999) %}{{ '' if -1 in l }}{% endfor %}",
    "search": BIG + "{% for a in range(99999) %}{{ '' if 'xxxxxxxy' in big }}{% endfor %}",
    "compare": "{% set a = 'x' * 5000000 %}{% set b = 'x' * 5000000 %}{% for i in range(99999) %}{{ '' if a != b }}{% endfor %}",
    "upper": BIG + "{% for a in range(99999) %}{{ '' if not big.islower() }}{% endfor %}",
    "range_of_loops": "{% for a in range(99999) | map('int') %}{{ range(99999) | sum | string | length * 0 or '' }}{% endfor %}",
    "unique": "{% for a in range(99999) %}{{ range(99999) | unique | first or '' }}{% endfor %}" * 50,
}
GROWTH = {
    "concat": doubling("'x'", "ns.v ~ ns.v"),
    "plus": doubling("'x'", "ns.v + ns.v"),
    "times": "{{ 'x' * 10 ** 9 }}",
    "times_left": "{{ 1000000000 * 'x' }}",
    "times_list": "{% set x = [1] * 1000000000 %}",
    "times_tuple": "{% set x = 1000000000 * (1,) %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power_of_filter": "{{ 10 ** ('9' * 9) | int }}",
    "square": doubling("9", "ns.v * ns.v"),
    "list_plus": doubling("[1]", "ns.v + ns.v"),
    "list_nested": doubling("[1]", "[ns.v, ns.v]"),
    "tuple_nested": doubling("(1,)", "(ns.v, ns.v)"),
    "dict_nested": doubling("{}", "{'a': ns.v, 'b': ns.v}"),
    "dict_call": doubling("{}", "dict(a=ns.v, b=ns.v)"),
    "varargs": "{% set ns = namespace(v=(1,)) %}{% macro f() %}{% set ns.v = varargs %}{% endmacro %}"
    "{% for i in range(80) %}{{ f(ns.v, ns.v) }}{% endfor %}{{ ns.v | string }}",
    "kwargs": "{% set ns = namespace(v=(1,)) %}{% macro f() %}{% set ns.v = kwargs %}{% endmacro %}"
    "{% for i in range(80) %}{{ f(a=ns.v, b=ns.v) }}{% endfor %}{{ ns.v | string }}",
    "batch_nested": doubling("[1]", "[1] | batch(2, ns.v) | list + ns.v"),
    "batch_fill": doubling("[1]", "[ns.v] | batch(2, ns.v) | list"),
    "slice_fill": doubling("[1]", "[ns.v] | slice(2, ns.v) | list"),
    "set_block": "{% set ns = namespace(v='x') %}{% for i in range(80) %}{% set ns.v %}{{ ns.v }}{{ ns.v }}"
    "{% endset %}{% endfor %}",
    "macro_text": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + doubling("'x'", "f(ns.v)"),
    "join": "{{ range(99999) | join('x' * 1000000) }}",
    "join_method": "{{ ('x' * 1000000).join('y' * 100000) }}",
    "join_keyword": "{{ range(99999) | join(d='x' * 1000000) }}",
    "join_attribute": BIG + "{{ [{'a': big}, {'a': big}] * 500 | join(attribute='a') }}",
    "replace": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "replace_empty": "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
    "replace_keyword": "{{ ('x' * 100000) | replace(old='x', new='y' * 100000) }}",
    "replace_method": "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
    "replace_map": "{{ ['x' * 100000] | map('replace', 'x', 'y' * 100000) | list }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "center_map": "{{ ['x'] | map('center', 1000000000) | list }}",
    "center_method": "{{ 'x'.center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "bound_method": "{% set f = 'x'.center %}{{ f(1000000000) }}",
    "bound_method_attr": "{% set f = 'x' | attr('center') %}{{ f(1000000000) }}",
    "indent": "{{ 'x\ny' | indent(1000000000) }}",
    "indent_text": "{{ ('\n' * 100000) | indent('x' * 100000, true, true) }}",
    "percent_width": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (1000000000, 1) }}",
    "percent_precision": "{{ '%.1000000000f' % 1.0 }}",
    "percent_refs": "{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}",
    "format_filter": "{{ '%1000000000d' | format(1) }}",
    "format_method": "{{ '{:1000000000}'.format(1) }}",
    "format_nested": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format_refs": "{{ ('{0}' * 100000).format('x' * 1000000) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "batch": "{{ [1] | batch(1000000000, 1) | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "tojson_indent": "{{ [1] | tojson(indent=1000000000) }}",
    "tojson_separator": "{{ range(9999) | list | tojson(separators=('x' * 1000000, ':')) }}",
    "sum_of_lists": "{{ range(99999) | batch(1) | sum(start=[]) | length }}",
    "range": "{{ range(1000000000) | list }}",
    "to_bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "strftime": "{{ strftime_now('%1000000000Y') }}",
    "strftime_long": "{{ strftime_now('%c' * 10000000) }}",
    "output": "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
    "output_data": "{% for i in range(99999) %}" + "x" * 100 + "{% endfor %}",
    "hoard": BIG + "".join(f"{{% set a{i} = big ~ '{i}' %}}" for i in range(500)),
    "hoard_slices": BIG + "".join(f"{{% set a{i} = big[1:] %}}" for i in range(500)),
    "hoard_upper": BIG + "".join(f"{{% set a{i} = big.upper() %}}" for i in range(500)),
    "split": BIG + "{% set l = big | list %}{% set m = big.split('x') %}",
    "into_message": "{% set messages[0].content %}x{% endset %}",
    "cycle_through_a_dict": "{% set d = {} %}{% set d.a | default(d, true) %}{% endset %}{{ d }}",
}
ESCAPES = {
    "class": "{{ ''.__class__ }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item_dunder": "{{ ''['__class__'] }}",
    "attr_filter": "{{ '' | attr('__class__') }}",
    "map_attribute": "{{ [''] | map(attribute='__class__') | list | first }}",
    "map_attr": "{{ [''] | map('attr', '__class__') | list | first }}",
    "groupby": "{{ [''] | groupby('__class__') | list }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "namespace_init": "{{ namespace.__init__ }}",
    "format_attribute": "{{ '{0.__class__}'.format('') }}",
    "format_filter_globals": "{{ '{0.__globals__}'.format(raise_exception) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': ''}) }}",
    "loop_context": "{% for i in [1] %}{{ loop._iterable }}{{ loop.__class__ }}{% endfor %}",
    "macro_func": "{% macro f() %}{% endmacro %}{{ f._func }}",
    "macro_code": "{% macro f() %}{% endmacro %}{{ f.__call__.__globals__ }}",
    "self_context": "{{ self._TemplateReference__context.environment }}",
    "cycler": "{{ cycler('a').items.clear() }}{{ cycler.__init__.__globals__.os }}",
    "joiner": "{{ joiner.__init__.__globals__.os }}",
    "append": "{{ messages.append(1) }}",
    "pop": "{{ messages.pop() }}",
    "update": "{{ messages[0].update({'a': 1}) }}",
    "generator": "{{ ([1] | map('string')).gi_frame }}",
    "encode": "{{ 'x'.encode() }}",
    "undefined": "{{ x.__class__ }}",
    "include": "{% include 'a' %}",
    "import": "{% import 'os' as os %}",
    "extends": "{% extends 'a' %}",
    "hidden_filter": "{{ [['x' * 5000000, 'x' * 5000000]] | map('#concat') | list }}",
    "budget": "{{ self['#budget'] }}{{ context['#budget'] }}",
    "lipsum": "{{ lipsum(n=100000) }}",
}
SYNTAX = {
    "parentheses": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "brackets": "{{ " + "[" * 50_000 + "]" * 50_000 + " }}",
    "ifs": "{% if a %}" * 20_000 + "{% endif %}" * 20_000,
    "fors": "{% for a in b %}" * 10_000 + "{% endfor %}" * 10_000,
    "sum": "{{ 1" + "+1" * 100_000 + " }}",
    "nots": "{{ " + "not " * 60_000 + "1 }}",
    "filters": "{{ 1" + "|abs" * 60_000 + " }}",
    "many": "{{a}}" * 52_000,
    "too_long": "x" * (SOURCE_LIMIT_BYTES + 1),
    "open": "{% for",
    "unknown_filter": "{{ 'x' | urlize }}",
    "unknown_tag": "{% debug %}",
}


HOSTILE = {
    f"{group}-{name}": source
    for group, sources in (("loop", LOOPS), ("growth", GROWTH), ("escape", ESCAPES), ("syntax", SYNTAX))
    for name, source in sources.items()
}


@pytest.mark.parametrize("name", HOSTILE)
def test_ends_with_a_template_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is lowered to keep the suite fast; the next test uses the real one."""
    monkeypatch.setattr(budget_module, "CPU_LIMIT_S", 0.1)
    threads = threading.active_count()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(HOSTILE[name]).render(MESSAGES)
    assert 0 < len(caught.value.message) < 3000
    assert threading.active_count() == threads
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 600_000


def test_the_real_limit_ends_an_endless_loop() -> None:
    started_s = time.thread_time()
    with pytest.raises(TemplateError, match="processor time"):
        ChatTemplate(LOOPS["nested_filtered"]).render(MESSAGES)
    assert time.thread_time() - started_s < CPU_LIMIT_S + 0.5


def test_printing_a_namespace_shows_no_values() -> None:
    source = "{% set ns = namespace(a='secret') %}{% set ns.b = [ns, ns] %}{{ ns }}{{ ns.b | length }}"
    assert ChatTemplate(source).render(MESSAGES) == "<Namespace>2"


def test_the_time_limit_counts_work_not_waiting() -> None:
    """A budget with a fake clock: over the limit, it raises at the next check."""
    now_s = 0.0
    budget = Budget(clock=lambda: now_s)
    for _ in range(100):
        budget.tick()
    now_s = CPU_LIMIT_S + 0.1
    with pytest.raises(TemplateError, match="processor time"):
        for _ in range(100):
            budget.tick()


def test_a_deep_input_is_refused() -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested"):
        ChatTemplate("{{ x }}").render(MESSAGES, variables={"x": deep})


def test_inputs_are_not_changed() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": [1]}}}]
    before = repr(tools)
    for source in ("{% set tools[0].x = 1 %}", "{% set t = tools[0] %}{% set t.x %}1{% endset %}"):
        with pytest.raises(TemplateError):
            ChatTemplate(source).render(MESSAGES, tools=tools)
    assert repr(tools) == before
