"""The same conversation as others send it: typos and casing, below a system message, behind other turns."""

from collections.abc import Sequence

from dialogue import Conversation
from numpy.random import Generator

from data.near import Outside
from data.words import pick

SYSTEM_SHARE, TURNS_SHARE = 0.15, 0.1
MAX_ASKED = 500  # characters that are compared
_SYSTEMS = (
    "You are {a} {b} assistant.",
    "You are {a} {b} assistant. Answer in one line.",
    "You are {a} {b} AI agent that works for {c}. {d}",
    "{d} You never give reasons.",
    "The user works at {c}. {d}",
    "# Rules\n- {d}\n- Be polite.\n- Today is day {n}.",
    "You help people of {c} with their computers. {d}",
)
_B = ("friendly", "careful", "expert", "brief", "honest", "technical", "patient", "smart")
_C = ("a bank", "a small shop", "the university", "the support team", "a hospital", "an airline")
_D = (
    "Answer as briefly as you can.", "Do not explain.", "Give only the result.", "Think before you answer.",
    "Use plain text.", "Ask when something is missing.", "Follow what the user says.",
)  # fmt: skip


def noised(text: str, random: Generator) -> str:
    """With one letter wrong, all in small letters, without its end, or with a word before it."""
    kind = int(random.integers(5))
    if kind == 0 and len(text) > 12:
        at = int(random.integers(3, len(text) - 3))
        if text[at : at + 2].isalpha() and not any(one.isdigit() for one in text):
            return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 1:
        return text.rstrip(".?! ")
    if kind == 2:
        return f"{pick(('please', 'hey,', 'hi,', 'quick question:', 'ok,', 'now'), random)} {text}"
    if kind == 3:
        return f"{text.rstrip('.? ')} please"
    return text[0].upper() + text[1:]


def system_message(random: Generator) -> str:
    """One that says nothing about the task."""
    form, b = pick(_SYSTEMS, random), pick(_B, random)
    article = "an" if b[0] in "aeiou" else "a"
    return form.format(a=article, b=b, c=pick(_C, random), d=pick(_D, random), n=random.integers(1, 366))


class Varied:
    """A part of the mixture whose conversations may stand below a system message or behind others, and are
    never near to the outside set."""

    def __init__(self, part: object, before: Sequence[object], outside: Outside) -> None:
        self.name: str = part.name  # type: ignore[attr-defined]
        self._part, self._before, self._outside = part, before, outside

    def draw(self, random: Generator) -> Conversation:
        """A function of `random`. System messages are for templates that do not leave them out."""
        while True:
            drawn: Conversation = self._part.draw(random)  # type: ignore[attr-defined]
            asked = next(str(one["content"]) for one in drawn.messages if one["role"] == "user")
            if not self._outside.is_near(asked[-MAX_ASKED:]):
                break
        messages = drawn.messages
        if not drawn.tools and random.random() < TURNS_SHARE:
            first: Conversation = pick(self._before, random).draw(random)  # type: ignore[attr-defined]
            if not first.tools and not any(one["role"] == "system" for one in first.messages):
                messages = (*first.messages, *messages)
        if messages[0]["role"] != "system" and random.random() < SYSTEM_SHARE:
            messages = ({"role": "system", "content": system_message(random)}, *messages)
        return Conversation(messages, drawn.tools)
