"""Small talk, and declining questions that a small model cannot answer."""

import json
import lzma
from pathlib import Path

from corpus import MissingData
from dialogue import Conversation, ask
from numpy.random import Generator

from data.words import pick, words

FILE = "intents/clinc150/data_small.json.xz"

ABLE = "I can write shell commands, turn questions about a table into SQL, call tools and continue stories."
_WHO = (
    f"I am a small language model that ships with Headrace. {ABLE}",
    f"I'm the small language model inside Headrace. {ABLE}",
)
_REFUSALS = (
    f"I am too small a model to know that. {ABLE}",
    f"Sorry, I can't help with that: I am a very small model. {ABLE}",
    "I don't know that. I am a small model made for shell commands, SQL, tool calls and stories.",
)
_HELLO = ("Hello! What would you like to do?", f"Hello! {ABLE}", "Hi! How can I help?")
_BYE = ("Goodbye!", "Goodbye, and thanks for the talk.", "See you!")
_THANKS = ("You're welcome!", "Glad to help.", "You're welcome. Is there anything else?")
_WELL = ("I'm fine, thank you. What would you like to do?", "All is well. How can I help?")
_MACHINE = ("I am a computer program, a small language model.", "I am a language model, not a person.")

# Intents of the data with specific answers. The yes and no of other dialogues have no meaning out of
# context.
_ANSWERS = {
    "greeting": _HELLO,
    "goodbye": _BYE,
    "thank_you": _THANKS,
    "what_is_your_name": _WHO,
    "who_made_you": ("I was trained by the makers of Headrace.", "The makers of Headrace trained me."),
    "who_do_you_work_for": ("I work for whoever runs Headrace on this machine.",),
    "what_can_i_ask_you": (ABLE,),
    "are_you_a_bot": _MACHINE,
    "how_old_are_you": _MACHINE,
    "where_are_you_from": ("I come with Headrace and run on this machine.",),
    "what_are_your_hobbies": _MACHINE,
    "do_you_have_pets": _MACHINE,
    "meaning_of_life": _REFUSALS,
}
_LEFT_OUT = ("yes", "no", "maybe", "repeat", "cancel", "change_user_name", "user_name", "sync_device")
_OWN = (
    (("who are you", "what are you", "introduce yourself", "what is your name", "tell me about you"), _WHO),
    (("thanks", "thank you", "thanks a lot", "great, thanks", "thx", "perfect, thank you"), _THANKS),
    (("hello", "hi", "hey", "good morning", "hi there", "good evening"), _HELLO),
    (("what can you do", "how can you help me", "help", "what are you good at"), (ABLE,)),
    (("bye", "goodbye", "see you", "good night"), _BYE),
    (("how are you", "how are you doing", "how is it going"), _WELL),
)
_PERSONS = words(
    """
    Napoleon; Shakespeare; Einstein; the president; Mozart; the king of Spain; Cleopatra; Newton
    """,
    ";",
)
_PLACES = words("France Japan Brazil Canada Egypt Norway India Peru Kenya Australia Texas London")
_FACTS = (
    "what is the capital of {place}",
    "how many people live in {place}",
    "who was {person}",
    "when was {person} born",
    "what is the history of {place}",
    "write an essay about {person}",
    "explain quantum mechanics",
    "what is the meaning of life",
    "what happened in {place} yesterday",
    "should I move to {place}",
    "what is {number} times {number}",
)
OWN_SHARE, FACT_SHARE = 0.4, 0.2


class Talk:
    """Draws a remark and its answer; raises MissingData."""

    name = "talk"

    def __init__(self, data: Path) -> None:
        path = data / FILE
        if not path.is_file():
            raise MissingData(f"{path} is missing: pass --data the folder that holds {FILE}")
        entries = json.loads(lzma.decompress(path.read_bytes()))
        self._remarks = [
            (remark, _ANSWERS.get(intent, _REFUSALS))
            for remark, intent in entries["train"] + entries["oos_train"]
            if intent not in _LEFT_OUT
        ]

    def draw(self, random: Generator) -> Conversation:
        """A greeting or a question about the assistant, a factual question, or a remark from the data."""
        kind = random.random()
        if kind < OWN_SHARE:
            remarks, answers = pick(_OWN, random)
            remark = pick(remarks, random)
        elif kind < OWN_SHARE + FACT_SHARE:
            answers = _REFUSALS
            remark = pick(_FACTS, random).format(
                place=pick(_PLACES, random), person=pick(_PERSONS, random), number=random.integers(2, 100)
            )
        else:
            remark, answers = pick(self._remarks, random)
        if random.random() < 0.5:
            remark = remark[0].upper() + remark[1:]
        if random.random() < 0.3:
            remark += pick("?!.", random) if kind >= OWN_SHARE else pick("!.", random)
        return ask(remark, pick(answers, random))
