"""Works out every figure of a model card from a model folder and writes the card.

    python train/evaluate.py --model FOLDER --data FOLDER [--draft FOLDER] [--card]

Answers are greedy and come from headrace, as a user gets them; bits per byte and a draft's accepted tokens
come from the same weights in PyTorch. With `--draft` the figures are those of the draft for this model.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from corpus import MissingData
from data.shell import Example
from data.sql import Question, grammar
from decoder import Decoder
from dialogue import Conversation, Writer, up_to_turn
from export import read_model
from figures import accepted_per_step, command_name, logical_form, runs, wanted_form
from measure import text_windows
from sources import Sources, read_sources
from stream import byte_lengths, encode
from tokenizers import Tokenizer
from torch.nn import functional as F

from headrace import LLM

SEED = 11
SHELL_COUNT, SQL_COUNT, TOOLS_COUNT = 1000, 1000, 300
LONGEST_ANSWER = 160
DRAFTED = 4
CARDS = Path(__file__).with_name("cards")
PLACE = "{{figures}}"

Rows = list[tuple[str, str]]


def answers(llm: LLM, writer: Writer, conversations: list[Conversation]) -> list[str]:
    """The model's greedy last message in each."""
    prompts = [writer.prompt_ids(conversation) for conversation in conversations]
    done = llm.generate_batch(prompts, max_tokens=LONGEST_ANSWER, temperature=0.0)
    return [completion.text for completion in done]


def shell_rows(llm: LLM, writer: Writer, sources: Sources) -> Rows:
    """Commands for tasks in words that were never trained on."""
    rows: Rows = []
    for what, everyday in (("all its pages", False), ("everyday commands", True)):
        asked = sources.shell.held_out(SHELL_COUNT, SEED, everyday=everyday)
        said = answers(llm, writer, [conversation for _, conversation in asked])
        examples = [example for example, _ in asked]
        rows += _shell_rows(what, examples, said)
    return rows + _own_rows(llm, writer, sources)


def _own_rows(llm: LLM, writer: Writer, sources: Sources) -> Rows:
    """Our own everyday tasks, each in a wording that was kept back."""
    asked = sources.everyday.held_out()
    said = answers(llm, writer, asked)
    names, exact = _right_commands([str(talk.messages[-1]["content"]) for talk in asked], said)
    return [
        ("shell, own tasks in new wordings: right command name", _share(names)),
        ("shell, own tasks in new wordings: exact command", _share(exact)),
    ]


def _shell_rows(what: str, examples: list[Example], said: list[str]) -> Rows:
    names, exact = _right_commands([example.command for example in examples], said)
    unnamed = [right for right, example in zip(names, examples, strict=True) if not example.ambiguous]
    return [
        (f"shell, {what}: right command name", _share(names)),
        (f"shell, {what}: right name where the task does not give it", _share(unnamed)),
        (f"shell, {what}: exact command", _share(exact)),
    ]


def _right_commands(wanted: list[str], said: list[str]) -> tuple[list[bool], list[bool]]:
    """Of each answer whether its command's name is right, and whether all of it is."""
    pairs = list(zip(wanted, said, strict=True))
    names = [command_name(command) == command_name(answer) for command, answer in pairs]
    return names, [command == answer.strip() for command, answer in pairs]


def sql_rows(llm: LLM, writer: Writer, sources: Sources) -> Rows:
    """Statements for questions of WikiSQL's test split: free, and held to the grammar of their tables."""
    asked = sources.sql.held_out(SQL_COUNT, SEED, split="test")
    free = answers(llm, writer, [conversation for _, conversation in asked])
    held = [
        llm.generate(
            writer.prompt_ids(conversation),
            max_tokens=LONGEST_ANSWER,
            temperature=0.0,
            grammar=grammar(_table(conversation), question.columns),
        ).text
        for question, conversation in asked
    ]
    return _sql_rows("", asked, free) + _sql_rows(" under a grammar of its names", asked, held)


def _sql_rows(how: str, asked: list[tuple[Question, Conversation]], said: list[str]) -> Rows:
    pairs = list(zip(asked, said, strict=True))
    ran = [runs(statement, _table(talk), question.columns) for (question, talk), statement in pairs]
    formed = [logical_form(statement) == wanted_form(question) for (question, _), statement in pairs]
    return [
        (f"SQL, WikiSQL test: executable{how}", _share(ran)),
        (f"SQL, WikiSQL test: right logical form{how}", _share(formed)),
    ]


def _table(conversation: Conversation) -> str:
    return conversation.messages[0]["content"].split(" ", 2)[1]


def tool_rows(llm: LLM, writer: Writer, sources: Sources) -> Rows:
    """The first turn of generated dialogues that none of training is equal to."""
    asked = [
        up_to_turn(sources.tools.draw(np.random.default_rng([SEED, 5, at])), 0) for at in range(TOOLS_COUNT)
    ]
    said = answers(llm, writer, asked)
    right = [_calls(answer) == _wanted(talk) for answer, talk in zip(said, asked, strict=True)]
    return [("tool calls: right calls with right arguments, or rightly none", _share(right))]


def edit_rows(llm: LLM, writer: Writer, sources: Sources) -> Rows:
    """Texts of held-out novels to be repeated, with a word changed or without."""
    random = np.random.default_rng([SEED, 7])
    edits = sources.held_out_edits()
    asked = [edits.draw(random) for _ in range(TOOLS_COUNT)]
    said = answers(llm, writer, asked)
    right = [a == talk.messages[-1]["content"] for a, talk in zip(said, asked, strict=True)]
    return [("a text with one word changed: every character right", _share(right))]


def _wanted(conversation: Conversation) -> object:
    calls = conversation.messages[-1].get("tool_calls", [])
    return [call["function"] for call in calls]


def _calls(answer: str) -> object:
    """The calls of an answer; an unreadable one is equal to nothing that is wanted."""
    bodies = [part.partition("</tool_call>")[0] for part in answer.split("<tool_call>")[1:]]
    try:
        return [json.loads(body) for body in bodies]
    except ValueError:
        return bodies


@torch.no_grad()
def prose_rows(decoder: Decoder, tokenizer: Tokenizer, sources: Sources) -> Rows:
    """Bits per byte of each held-out novel, whole, in windows of 512 tokens."""
    rows: Rows = []
    lengths = byte_lengths(tokenizer)
    for name, chapters in sources.novels.held_out.items():
        windows = text_windows(encode(tokenizer, chapters), 512)
        nats = 0.0
        for part in windows.split(8):
            logits = decoder(part[:, :-1])
            nats += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        bits = nats / math.log(2) / int(lengths[windows[:, 1:].numpy()].sum())
        rows.append(
            (f"prose: bits per byte on {name.removesuffix('.txt').replace('_', ', ')}", f"{bits:.3f}")
        )
    return rows


@torch.no_grad()
def draft_rows(llm: LLM, writer: Writer, draft: Decoder, sources: Sources) -> Rows:
    """Accepted draft tokens per step where the target decodes greedily."""
    random = np.random.default_rng([SEED, 6])
    jobs = {
        "shell": [talk for _, talk in sources.shell.held_out(TOOLS_COUNT, SEED)],
        "SQL": [talk for _, talk in sources.sql.held_out(TOOLS_COUNT, SEED, split="test")],
        "tool calls": [up_to_turn(sources.tools.draw(random), 0) for _ in range(TOOLS_COUNT)],
    }
    rows: Rows = []
    for name, talks in jobs.items():
        prompts = [writer.prompt_ids(talk) for talk in talks]
        done = llm.generate_batch(prompts, max_tokens=LONGEST_ANSWER, temperature=0.0)
        accepted = steps = 0
        for prompt, completion in zip(prompts, done, strict=True):
            target = list(completion.tokens)
            logits = draft(torch.tensor([[*prompt, *target[:-1]]]))[0, len(prompt) - 1 :]
            more, taken = accepted_per_step(target, logits.argmax(-1).tolist(), DRAFTED)
            accepted, steps = accepted + more, steps + taken
        rows.append((f"{name}: accepted of {DRAFTED} drafted tokens per step", f"{accepted / steps:.2f}"))
    return rows


def _share(right: list[bool]) -> str:
    return f"{sum(right) / len(right):.1%} of {len(right):,}"


def _table_text(rows: Rows) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows)])


def main() -> int:
    """Prints the figures; with `--card` writes the folder's README.md from the card's text."""
    parser = argparse.ArgumentParser(description="Works out the figures of a model card.")
    parser.add_argument("--model", type=Path, required=True, help="model folder; with --draft the target")
    parser.add_argument("--data", type=Path, required=True, help="folder with text/, sql/ and intents/")
    parser.add_argument("--draft", type=Path, help="model folder of a draft")
    parser.add_argument("--card", choices=["mini", "nano"], help="write this card into the folder")
    options = parser.parse_args()
    try:
        sources = read_sources(options.data)
    except MissingData as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folder: Path = options.draft or options.model
    decoder, tokenizer = read_model(folder)
    writer = Writer(tokenizer)
    with LLM(options.model, cache_dir=None) as llm:
        if options.draft:
            rows = draft_rows(llm, writer, decoder, sources)
        else:
            rows = shell_rows(llm, writer, sources) + sql_rows(llm, writer, sources)
            rows += tool_rows(llm, writer, sources) + edit_rows(llm, writer, sources)
    table = _table_text(rows + prose_rows(decoder, tokenizer, sources))
    print(table)
    if options.card:
        text = (CARDS / f"{options.card}.md").read_text()
        (folder / "README.md").write_text(text.replace(PLACE, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
