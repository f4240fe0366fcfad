"""Requests with invented tools: a call, a question for a required argument that is missing, or words."""

from typing import Any

from dialogue import Conversation
from numpy.random import Generator

from data.words import pick, words

_VERBS = words("book cancel find open print rent share track order measure assign rate move scan")
_NOUNS = words(
    "table parcel seat locker bicycle lamp desk badge garden boat stall tent invoice chair sensor", None
)
_ARGUMENTS = {
    "city": words("Bergen Cairo Dallas Lima Osaka Riga Sofia Tunis"),
    "name": words("Ada Boris Elena Henrik Vera Zoe"),
    "day": words("Monday Tuesday Thursday Sunday"), "code": words("A17 B204 KX9 Z55 QR3"),
    "color": words("green yellow purple white"), "email": words("a@example.com vera@example.org"),
}  # fmt: skip
_NUMBERS = ("count", "minutes", "floor", "amount")
_TALK = (
    ("thanks a lot", "You're welcome!"), ("good morning", "Good morning! What can I do for you?"),
    ("who are you?", "I am a small language model with a few tools."), ("never mind", "All right."),
    ("what is the tallest tower of the world?", "I don't know that, and I have no tool for it."),
    ("tell me something funny", "Sorry, I have no tool for that."), ("bye for now", "Goodbye!"),
    ("explain how rain forms", "I don't know that, and I have no tool for it."), ("nice work", "Thank you!"),
)  # fmt: skip
CALL_SHARE, MISSING_SHARE, PAIR_SHARE = 0.45, 0.25, 0.12


class ToolAsks:
    """Draws one request over one to four invented tools."""

    name = "tool asks"

    def draw(self, random: Generator) -> Conversation:
        """A function of `random`."""
        made = {one["function"]["name"]: one for one in (_tool(random) for _ in range(random.integers(1, 5)))}
        tools = tuple(made.values())
        kind = random.random()
        if kind < CALL_SHARE:
            tool = pick(tools, random)
            count = 2 if random.random() < PAIR_SHARE else 1
            request, calls = _request(tool, count, random)
            answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        elif kind < CALL_SHARE + MISSING_SHARE:
            function = pick(tools, random)["function"]
            missing = function["parameters"]["required"][0]
            form = pick(("{n}", "{n} please", "can you {n}?", "I want to {n}", "{n} for me"), random)
            request = form.format(n=_plain(function["name"]))
            asked = pick(("Which {m} should it be?", "Please tell me the {m}.", "What is the {m}?"), random)
            answer = {"role": "assistant", "content": asked.format(m=missing)}
        else:
            request, said = pick(_TALK, random)
            answer = {"role": "assistant", "content": said}
        return Conversation(({"role": "user", "content": request}, answer), tools)


def _plain(name: str) -> str:
    verb, noun = name.split("_")
    return f"{verb} a {noun}"


def _tool(random: Generator) -> dict[str, Any]:
    name = f"{pick(_VERBS, random)}_{pick(_NOUNS, random)}"
    properties: dict[str, Any] = {}
    for at in random.permutation(len(_ARGUMENTS))[: random.integers(1, 3)]:
        properties[list(_ARGUMENTS)[at]] = {"type": "string"}
    if random.random() < 0.5:
        properties[pick(_NUMBERS, random)] = {"type": "integer"}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    if random.random() < 0.3:
        schema = {**schema, "properties": {**properties, "note": {"type": "string"}}}
    function = {"name": name, "description": f"{_plain(name).capitalize()}", "parameters": schema}
    return {"type": "function", "function": function}


def _request(tool: dict[str, Any], count: int, random: Generator) -> tuple[str, list[dict[str, Any]]]:
    """A request that has all that is required, once or twice, and its calls."""
    function = tool["function"]
    asks: list[str] = []
    calls: list[dict[str, Any]] = []
    for _ in range(count):
        values: dict[str, Any] = {
            name: pick(_ARGUMENTS[name], random) if name in _ARGUMENTS else int(random.integers(1, 90))
            for name in function["parameters"]["required"]
        }
        form = pick(("{c} {v}", "with {c} {v}", "{c}: {v}", "for the {c} {v}"), random)
        asks.append(", ".join(form.format(c=name, v=value) for name, value in values.items()))
        calls.append({"type": "function", "function": {"name": function["name"], "arguments": values}})
    opening = pick(("{n},", "please {n},", "I need to {n},", "{n}"), random).format(
        n=_plain(function["name"])
    )
    return f"{opening} {' and another one, '.join(asks)}", calls
