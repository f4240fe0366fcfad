"""Generated dialogues in which the assistant calls tools, and some in which no tool fits."""

import json
from dataclasses import dataclass
from typing import Any

from dialogue import Conversation
from numpy.random import Generator

from data.toolbox import KINDS, TOPIC, Kind, Slot, one_of, whole
from data.words import pick, words

INVENTED_SHARE = 0.35
UNFIT_SHARE = 0.12
TWICE_SHARE = 0.12
BOTH_SHARE = 0.12
MAX_OTHERS = 3

_INSTRUCTIONS = ("You are a helpful assistant.", "You can use tools.", "Answer briefly.", "Use the tools.")
_UNFIT = (
    "None of my tools can do that.",
    "I have no tool for that.",
    "Sorry, my tools can't do that.",
)
_VERBS = words(
    """
    create delete update get open close start stop check archive rename move copy lock reset share
    """
)
_NOUNS = words(
    """
    invoice ticket account project document folder server channel device job report image playlist session
    contract recipe booking camera door window backup branch customer employee sensor printer route note
    group page survey task template vehicle warehouse payment profile key token queue topic shipment room
    """
)
_LABELS = words("name title id label key target value code")
_STATUS = one_of("ok", "done", "success")


class ToolCalls:
    """Draws a dialogue; about a third use tools that occur in no other dialogue."""

    name = "tools"

    def draw(self, random: Generator) -> Conversation:
        """Tools, a request, usually a call with its result, and an answer."""
        kinds = [_kind(random) for _ in range(1 + random.integers(MAX_OTHERS + 1))]
        kinds = list({kind.description: kind for kind in kinds}.values())
        tools = [_Tool(kind, random) for kind in kinds]
        wanted = tools[0]
        unfit = len(tools) > 1 and random.random() < UNFIT_SHARE
        shown = tools[1:] if unfit else tools
        messages: list[dict[str, Any]] = []
        if random.random() < 0.3:
            messages.append({"role": "system", "content": pick(_INSTRUCTIONS, random)})
        if unfit:
            messages += wanted.refused(random)
        elif len(shown) > 1 and random.random() < BOTH_SHARE:
            messages += _exchange(shown[:2], random)
        else:
            messages += _exchange([wanted], random)
            if random.random() < TWICE_SHARE:
                messages += _exchange([pick(shown, random)], random)
        order = random.permutation(len(shown))
        return Conversation(tuple(messages), tuple(shown[at].schema for at in order))


@dataclass(frozen=True, slots=True)
class _Turn:
    """The user's message, the call, the tool's result, the assistant's answer."""

    request: str
    call: dict[str, Any]
    result: str
    answer: str


class _Tool:
    """A kind of tool, with its names in this dialogue."""

    def __init__(self, kind: Kind, random: Generator) -> None:
        self.kind = kind
        self.name = pick(kind.names, random)
        self.parameters = [pick(slot.names, random) for slot in kind.slots]
        properties = {
            name: {"type": slot.kind} | ({"enum": list(slot.choices)} if slot.choices else {})
            for name, slot in zip(self.parameters, kind.slots, strict=True)
        }
        self.schema = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": kind.description,
                "parameters": {"type": "object", "properties": properties, "required": self.parameters},
            },
        }

    def turn(self, random: Generator) -> _Turn:
        """A request and everything after it."""
        values = [slot.pool(random) for slot in self.kind.slots]
        result = {key: pool(random) for key, pool in self.kind.result.items()}
        arguments = dict(zip(self.parameters, values, strict=True))
        return _Turn(
            _vary(pick(self.kind.asks, random).format(*values), random),
            {"type": "function", "function": {"name": self.name, "arguments": arguments}},
            json.dumps(result),
            pick(self.kind.answers, random).format(*values, **result),
        )

    def refused(self, random: Generator) -> list[dict[str, Any]]:
        """A request and a refusal."""
        return [
            {"role": "user", "content": self.turn(random).request},
            {"role": "assistant", "content": pick(_UNFIT, random)},
        ]


def _exchange(tools: list[_Tool], random: Generator) -> list[dict[str, Any]]:
    """One request for all of `tools`, their calls, their results, one answer."""
    turns = [tool.turn(random) for tool in tools]
    return [
        {"role": "user", "content": " ".join(_ended(turn.request, len(turns)) for turn in turns)},
        {"role": "assistant", "content": "", "tool_calls": [turn.call for turn in turns]},
        *({"role": "tool", "content": turn.result} for turn in turns),
        {"role": "assistant", "content": " ".join(turn.answer for turn in turns)},
    ]


def _ended(request: str, count: int) -> str:
    return request if count == 1 or request.endswith((".", "?")) else f"{request}."


def _kind(random: Generator) -> Kind:
    return _invented(random) if random.random() < INVENTED_SHARE else pick(KINDS, random)


def _invented(random: Generator) -> Kind:
    """`verb_noun` with one or two parameters: the names are random, so that the model learns to copy them."""
    verb, noun = pick(_VERBS, random), pick(_NOUNS, random)
    name = pick((f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{noun.title()}", f"{noun}.{verb}"), random)
    label = pick(_LABELS, random)
    if random.random() < 0.5:
        slot = Slot((label, f"{noun}_{label}"), "integer", whole(1, 9999))
    else:
        slot = Slot((label, f"{noun}_{label}"), "string", _word)
    asks = (f"{verb} {noun} {{0}}", f"Please {verb} the {noun} {{0}}.", f"Can you {verb} {noun} {{0}}?")
    slots = (slot,)
    if random.random() < 0.3:
        other = pick(
            [label for label in ("count", "priority", "level", "size") if label != slot.names[0]], random
        )
        slots = (slot, Slot((other,), "integer", whole(1, 50)))
        asks = (f"{verb} {noun} {{0}} with {other} {{1}}", f"{verb.title()} the {noun} {{0}}, {other} {{1}}.")
    return Kind(
        (name,),
        f"{verb.title()} a {noun}.",
        slots,
        asks,
        {"status": _STATUS},
        (f"Done: {verb} {noun} {{0}}.", f"The {noun} {{0}} is taken care of."),
    )


def _word(random: Generator) -> str:
    """A random word, a topic, or a name with a number."""
    kind = random.integers(3)
    if kind == 0:
        return "".join(
            pick("bcdfghklmnprstvz", random) + pick("aeiou", random) for _ in range(random.integers(2, 4))
        )
    if kind == 1:
        return TOPIC(random)
    return f"{pick(_NOUNS, random)}-{random.integers(1, 1000)}"


def _vary(text: str, random: Generator) -> str:
    kind = random.random()
    if kind < 0.2:
        return text[:1].lower() + text[1:].rstrip(".?!")
    if kind < 0.3:
        return f"Please {text[:1].lower()}{text[1:]}" if not text.endswith("?") else f"Hi! {text}"
    return text
