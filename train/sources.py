"""All training data of the chat models: read, tokenized, mixed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpus import MissingData
from data.documents import read_documents
from data.edits import Edits
from data.everyday import Everyday
from data.near import outside_set
from data.prose import Novels, Stories, read_novels
from data.shell import Shell
from data.sql import Sql
from data.tables import Tables
from data.talk import Talk
from data.tool_asks import ToolAsks
from data.tool_calls import ToolCalls
from data.variants import Varied
from dialogue import Writer, make_tokenizer
from mixture import Mixture, Part, Text
from stream import load_stream
from tokenizers import Tokenizer

VOCABULARY = 8192

# Share of the windows, and loss weight of a token compared with a token of an answer.
PROSE_SHARE, PROSE_WEIGHT = 0.10, 0.5
DOCUMENTS_SHARE, DOCUMENTS_WEIGHT = 0.02, 0.5
# Shares of the conversations' tokens.
SHELL_SHARE, EVERYDAY_SHARE, SQL_SHARE, TABLES_SHARE = 0.26, 0.08, 0.06, 0.26
TOOLS_SHARE, ASKS_SHARE, EDITS_SHARE, TALK_SHARE, STORIES_SHARE = 0.08, 0.06, 0.14, 0.03, 0.03

_DRAWN_FOR_TOKENIZER = 12_000


@dataclass(frozen=True, slots=True)
class Sources:
    """All data of the recipe, read."""

    novels: Novels
    documents: list[str]
    shell: Shell
    everyday: Everyday
    sql: Sql
    talk: Talk
    tools: ToolCalls
    edits: Edits

    def held_out_edits(self) -> Edits:
        """Those of the held-out novels."""
        return Edits([chapter for chapters in self.novels.held_out.values() for chapter in chapters])


def read_sources(data: Path) -> Sources:
    """Raises MissingData naming the first missing file."""
    novels, documents = read_novels(data), read_documents(data)
    edits = Edits(novels.plain + novels.other + documents)
    return Sources(novels, documents, Shell(data), Everyday(), Sql(data), Talk(data), ToolCalls(), edits)


def tokenizer_texts(sources: Sources) -> list[str]:
    """The text for training the tokenizer: tasks have more weight than their bytes."""
    random = np.random.default_rng(0)
    drawn = [
        part.draw(random)
        for part in (sources.shell, sources.everyday, sources.sql, sources.tools)
        for _ in range(_DRAWN_FOR_TOKENIZER)
    ]
    said = [str(message["content"]) for conversation in drawn for message in conversation.messages]
    commands = [f"{example.task}\n{example.command}" for example in sources.shell.examples]
    novels = sources.novels.plain + sources.novels.other[::12]
    return novels + said + commands + sources.documents[::4]


def prepare_tokenizer(sources: Sources, work: Path) -> Tokenizer:
    """Trains the tokenizer once, then reads it from the work folder."""
    path = work / "tokenizer.json"
    if not path.is_file():
        make_tokenizer(tokenizer_texts(sources), VOCABULARY).save(str(path))
    return Tokenizer.from_file(str(path))


def tokenizer_of_mini(work: Path) -> Tokenizer:
    """The tokenizer that was copied to the work folder. Raises MissingData."""
    path = work / "tokenizer.json"
    if not path.is_file():
        raise MissingData(f"{path} is missing: put the one of mini's model folder there")
    return Tokenizer.from_file(str(path))


def jobs(sources: Sources) -> tuple[tuple[Part, float], ...]:
    """The parts whose answers follow from the request, with their shares."""
    return (
        (sources.shell, SHELL_SHARE),
        (sources.everyday, EVERYDAY_SHARE),
        (sources.sql, SQL_SHARE),
        (sources.tools, TOOLS_SHARE),
        (sources.edits, EDITS_SHARE),
    )


def make_mixture(sources: Sources, tokenizer: Tokenizer, work: Path) -> Mixture:
    """The mixture that `mini` is trained on; its encoded text is cached in the work folder."""
    outside = outside_set()
    more = ((Tables(outside), TABLES_SHARE), (ToolAsks(), ASKS_SHARE), (sources.talk, TALK_SHARE))
    before = (sources.everyday, sources.talk, sources.shell)
    parts = (
        *((Varied(part, before, outside), share) for part, share in (*jobs(sources), *more)),
        (Stories(sources.novels), STORIES_SHARE),
    )
    novels = sources.novels.plain * 2 + sources.novels.other
    texts = (
        Text(load_stream(work / "prose.npz", tokenizer, novels), PROSE_SHARE, PROSE_WEIGHT),
        Text(
            load_stream(work / "documents.npz", tokenizer, sources.documents),
            DOCUMENTS_SHARE,
            DOCUMENTS_WEIGHT,
        ),
    )
    return Mixture(Writer(tokenizer), parts, texts)
