"""The tables of an index in PostgreSQL, and texts as they are kept there."""

from __future__ import annotations

import re

FORMAT = 1
SCHEMA = (
    """CREATE TABLE meta (
        only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), format int NOT NULL, model text NOT NULL,
        chunk_tokens int NOT NULL, owner text NOT NULL, details text NOT NULL, created_s bigint NOT NULL,
        generation bigint NOT NULL DEFAULT 0, rows bigint NOT NULL DEFAULT 0, size int NOT NULL DEFAULT 0,
        chunks bigint NOT NULL DEFAULT 0, words bigint NOT NULL DEFAULT 0, dead bigint NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE documents (
        number bigint PRIMARY KEY, key_digest bytea NOT NULL UNIQUE, key text NOT NULL, digest bytea NOT NULL,
        title text NOT NULL, attributes text NOT NULL, filters jsonb NOT NULL, generation bigint NOT NULL,
        at_s bigint NOT NULL
    )""",
    """CREATE TABLE chunks (
        id bigint PRIMARY KEY, document bigint NOT NULL, position int NOT NULL, start_at int NOT NULL,
        end_at int NOT NULL, words int NOT NULL, text text NOT NULL, UNIQUE (document, position)
    )""",
    "CREATE TABLE vectors (id bigint PRIMARY KEY, vector vector NOT NULL)",
    # The chunks that have a term: `first` + each of `places`, and how often each has it.
    """CREATE TABLE postings (
        term text COLLATE "C" NOT NULL, first bigint NOT NULL, places int[] NOT NULL, counts int[] NOT NULL,
        PRIMARY KEY (term, first)
    )""",
)
META = (
    "SELECT format, model, chunk_tokens, owner, details, generation, rows, size, chunks, words, dead"
    " FROM meta"
)
_SHIELDED = re.compile("\x01([\x01\x02])")


def shielded(text: str) -> str:
    """A text without NUL, which PostgreSQL does not take, in an order that is the same."""
    if "\x00" not in text and "\x01" not in text:
        return text
    return text.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def unshielded(text: str) -> str:
    """What `shielded` was given."""
    if "\x01" not in text:
        return text
    return _SHIELDED.sub(lambda found: "\x00" if found[1] == "\x01" else "\x01", text)
