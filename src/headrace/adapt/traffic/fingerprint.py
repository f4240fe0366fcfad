"""Which task a request belongs to, by its structure alone: exact, in microseconds, without a model.

Requests of one program have the same instructions, tools and form of answer, and differ in variables: dates,
numbers, names, addresses. These are masked in the instructions; what is left is the task.
"""

from __future__ import annotations

import hashlib
import json
import re

from msgspec import Struct

from headrace.gateway.labels import question_of
from headrace.inference.requests import ChatRequest, GenerationRequest

MAX_TEMPLATE = 4000
"""Characters of the masked instructions that are kept to show what a task is."""
MAX_MASKED = 64 * 1024
"""Characters of the instructions that are masked; where there are more, the rest counts as it is."""
MAX_WORD = 128
"""Characters of a word; a longer one is a variable. The patterns take time in a word's square."""
VARIABLE = "<…>"
_LONG_WORD = re.compile(rf"[\w#/:.,+%@$€£¥-]{{{MAX_WORD + 1},}}")
_VARIABLES = re.compile(
    r"""
    <[A-Z][A-Z_]*_\d+>                                   # what stands for personal data
    | https?://\S+ | www\.\S+
    | [\w.+-]+@[\w-]+\.[\w.-]+
    | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
    | \b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b
    | \b(?:january|february|march|april|june|july|august|september|october|november|december)\b
    | \b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)\.?(?=\s+\d)|(?<=\d\s)may\b
    | [$€£¥]?[\w#/:.,+-]*\d[\w/:,.%+-]*(?<![.,:])        # any word with a digit: numbers, dates, times, ids
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SEVERAL = re.compile(rf"{VARIABLE}(?:[\s,]*{VARIABLE})+")


class Fingerprint(Struct, frozen=True, kw_only=True):
    """A task by structure. `template` are the masked instructions, `tools` names, `form` the kind of answer
    that is asked for ("" for any)."""

    id: str
    group: str
    endpoint: str
    template: str
    tools: tuple[str, ...]
    form: str


def masked(text: str) -> str:
    """Instructions with their variables masked, and white space made equal."""
    plain = _SEVERAL.sub(VARIABLE, _VARIABLES.sub(VARIABLE, _LONG_WORD.sub(VARIABLE, text)))
    return " ".join(plain.split())


def fingerprint(redacted: GenerationRequest, *, group: str, endpoint: str) -> Fingerprint:
    """That of a request without personal data; `group` are the keys that share tasks."""
    template, tools = "", tuple[str, ...]()
    if isinstance(redacted, ChatRequest):
        said = [one.content or "" for one in redacted.messages if one.role in ("system", "developer")]
        instructions = "\n".join(said)
        template = masked(instructions[:MAX_MASKED]) + instructions[MAX_MASKED:]
        if redacted.tools is not None:
            tools = tuple(sorted(tool.name for tool in redacted.tools.offered))
    constraint = redacted.constraint
    form = "" if constraint is None else f"{constraint.kind} {_canonical(constraint.text)}"
    parts = json.dumps([group, endpoint, template, tools, form]).encode()
    return Fingerprint(
        id="t-" + hashlib.sha256(parts).hexdigest()[:12],
        group=group,
        endpoint=endpoint,
        template=template[:MAX_TEMPLATE],
        tools=tools,
        form=form[:MAX_TEMPLATE],
    )


def _canonical(text: str) -> str:
    """JSON without the order of its keys; other texts as they are."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def question_digest(redacted: GenerationRequest) -> bytes:
    """By which the same question is known when it is asked again [16 bytes]."""
    words = " ".join(question_of(redacted).casefold().split())
    return hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=16).digest()
