"""Filling in the middle: how models spell what stands before and after a gap (Bavarian et al., 2022)."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import Tokenizer


class InfillMarks(Struct, frozen=True, kw_only=True):
    """Tokens around both texts: `before` TEXT `after` TEXT `middle`; with `after_first` `after` comes first.

    `ends` are tokens that follow a filled gap; a model has some of them.
    """

    before: str
    after: str
    middle: str | None
    ends: tuple[str, ...]
    after_first: bool = False

    def known_to(self, tokenizer: Tokenizer) -> bool:
        """Whether the vocabulary has them."""
        marks = (self.before, self.after) if self.middle is None else (self.before, self.after, self.middle)
        return all(tokenizer.id_of(mark) is not None for mark in marks)


_KNOWN = (
    InfillMarks(  # Qwen Coder, CodeGemma, Granite 4
        before="<|fim_prefix|>",
        after="<|fim_suffix|>",
        middle="<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>"),
    ),
    InfillMarks(  # StarCoder, Granite Code, StableCode
        before="<fim_prefix>",
        after="<fim_suffix>",
        middle="<fim_middle>",
        ends=("<fim_pad>", "<repo_name>", "<file_sep>", "<|endoftext|>"),
    ),
    InfillMarks(  # SantaCoder
        before="<fim-prefix>",
        after="<fim-suffix>",
        middle="<fim-middle>",
        ends=("<fim-pad>", "<|endoftext|>"),
    ),
    InfillMarks(  # DeepSeek Coder and V3
        before="<｜fim▁begin｜>",
        after="<｜fim▁hole｜>",
        middle="<｜fim▁end｜>",
        ends=("<|EOT|>",),
    ),
    InfillMarks(before="▁<PRE>", after="▁<SUF>", middle="▁<MID>", ends=("▁<EOT>",)),  # Code Llama
    InfillMarks(before="[PREFIX]", after="[SUFFIX]", middle=None, ends=(), after_first=True),  # Codestral
)


class Infill(Struct, frozen=True):
    """A prompt whose continuation fills the gap, and the tokens that end it besides the model's own."""

    ids: tuple[int, ...]
    end_ids: tuple[int, ...]


def infill_prompt(tokenizer: Tokenizer, before: str, after: str) -> Infill:
    """The prompt for what stands between two texts; InvalidRequest where the model has no tokens for that.

    Texts that spell such tokens stay texts.
    """
    marks = next((marks for marks in _KNOWN if marks.known_to(tokenizer)), None)
    if marks is None:
        raise InvalidRequest(
            f"this model's tokenizer has no tokens for filling in (such as {_KNOWN[0].before}): leave suffix "
            "out, or use a model that was trained to fill in",
            param="suffix",
            code="unsupported_parameter",
        )
    first = [
        *_ids(tokenizer, marks.before),
        *tokenizer.encode(before, add_special=False, parse_special=False),
    ]
    second = [*_ids(tokenizer, marks.after), *_inside(tokenizer, after)]
    texts = [*second, *first] if marks.after_first else [*first, *second]
    middle = [] if marks.middle is None else _ids(tokenizer, marks.middle)
    ends = [token for mark in marks.ends for token in _ids(tokenizer, mark)]
    return Infill((*tokenizer.encode(""), *texts, *middle), tuple(ends))


def _ids(tokenizer: Tokenizer, mark: str) -> list[int]:
    token = tokenizer.id_of(mark)
    return [] if token is None else [token]


def _inside(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text without the space that some tokenizers put before one."""
    if tokenizer.pieces.kind is not Kind.BYTE_LEVEL:
        ids = tokenizer.encode("\x02" + text, add_special=False, parse_special=False)
        ends = [tokenizer.token_bytes(token).endswith(b"\x02") for token in ids]
        if True in ends:
            return ids[ends.index(True) + 1 :]
    return tokenizer.encode(text, add_special=False, parse_special=False)
