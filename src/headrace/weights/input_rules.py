"""What the files of an embedder say about its inputs: prompts in front of texts (sentence-transformers), and
how queries and documents are written for late interaction (ColBERT, PyLate).
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from headrace.errors import CorruptFile, InvalidRequest
from headrace.weights import strict_json
from headrace.weights.config_json import Config, boolean, integer, text, texts
from headrace.weights.confined import confined

SETTINGS, COLBERT = "config_sentence_transformers.json", "artifact.metadata"
_MAX_BYTES = 1 << 20


class LateInteraction(Struct, frozen=True, kw_only=True):
    """Marks of queries and documents behind the first special token; queries shorter than `query_length`
    tokens are expanded with mask tokens (0: none), which other tokens see if `attends_to_expansion`.
    Documents have no vectors of tokens in `skipped`.
    """

    query_mark: str
    document_mark: str
    query_length: int
    attends_to_expansion: bool
    skipped: tuple[str, ...]


class InputRules(Struct, frozen=True, kw_only=True):
    """`prompts` by name, of which `default` is used where none is named."""

    prompts: dict[str, str] = field(default_factory=dict[str, str])
    default: str | None = None
    late_interaction: LateInteraction | None = None

    def prompt(self, name: str | None) -> str:
        """The text in front of an input. Raises InvalidRequest for a name that is not known."""
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise InvalidRequest(
                f"prompt_name is '{name:.60}', the prompts of this model are: {known}", param="prompt_name"
            )
        return self.prompts[name]


def read_input_rules(folder: Path) -> InputRules:
    """The rules in the files of a folder; none in any other. Raises CorruptFile."""
    if not folder.is_dir():
        return InputRules()
    settings, colbert = _object(folder, SETTINGS) or {}, _object(folder, COLBERT)
    named = _prompts(settings.get("prompts"))
    default = text(settings, "default_prompt_name", "") or None
    if default is not None and default not in named:
        raise CorruptFile(f"{SETTINGS} has default_prompt_name '{default:.60}' without a prompt: correct it")
    late = _pylate(settings) if "query_prefix" in settings else None
    return InputRules(prompts=named, default=default, late_interaction=late or _colbert(colbert))


def _prompts(given: object) -> dict[str, str]:
    if not given:
        return {}
    if not isinstance(given, dict):
        raise CorruptFile(f"{SETTINGS} has prompts = {given!r:.60}, which must be an object: correct it")
    named: dict[str, str] = {}
    for name, prompt in cast("dict[str, object]", given).items():
        if not isinstance(prompt, str):
            raise CorruptFile(f"{SETTINGS} has a prompt '{name:.60}' that is no text: correct it")
        named[name] = prompt
    return named


def _pylate(settings: Config) -> LateInteraction:
    expands = boolean(settings, "do_query_expansion", True)
    return LateInteraction(
        query_mark=text(settings, "query_prefix"),
        document_mark=text(settings, "document_prefix"),
        query_length=integer(settings, "query_length", 32) if expands else 0,
        attends_to_expansion=boolean(settings, "attend_to_expansion_tokens", False),
        skipped=texts(settings, "skiplist_words") or (),
    )


def _colbert(settings: Config | None) -> LateInteraction | None:
    if settings is None:
        return None
    skips = boolean(settings, "mask_punctuation", True)
    return LateInteraction(
        query_mark=text(settings, "query_token_id", "[unused0]"),
        document_mark=text(settings, "doc_token_id", "[unused1]"),
        query_length=integer(settings, "query_maxlen", 32),
        attends_to_expansion=boolean(settings, "attend_to_mask_tokens", False),
        skipped=tuple(string.punctuation) if skips else (),
    )


def colbert_size(folder: Path) -> int:
    """Numbers of a vector of `HF_ColBERT`: `dim` of its metadata, 128 where it has none."""
    return integer(_object(folder, COLBERT) or {}, "dim", 128, maximum=1 << 16)


def _object(folder: Path, name: str) -> Config | None:
    try:
        return strict_json.read_object(confined(folder, name), _MAX_BYTES)
    except FileNotFoundError:
        return None
