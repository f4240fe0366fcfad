"""Many texts to one answer: parts that fit the model's context are answered, then answers are made one.

The tree depends on nothing but the texts, their order, the model's tokenizer and max_tokens. Leaves take as
many texts as fit, a text that fits none is cut into pieces. Nodes take so many answers as fit if all are as
long as they may be, so the number of requests is known before anything is computed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct

from headrace.data.decoding import Decoder, Decoding
from headrace.data.memo import Keeper
from headrace.data.model_work import StatementWork
from headrace.data.operator import Arguments, CheckedCall, KeptParts, RowCost, RowValue
from headrace.data.questions import Value
from headrace.errors import ContextLengthExceeded

BETWEEN = "\n\n"
MARGIN = 16
"""Tokens that a prompt may have beyond the sum of its parts, which are counted apart."""
CHARACTERS_PER_TOKEN = 4
LONGEST = 16
"""Characters for each token of room up to which a text is counted as a whole."""

_read = msgspec.json.Decoder(list[str | None]).decode


class Tree(Struct, frozen=True):
    """The leaves of a group, and the tokens of their prompts, exactly."""

    leaves: tuple[Arguments, ...]
    tokens: int


class Folding:
    """Of a call with an instruction."""

    def __init__(self, site: CheckedCall, name: str | None, instruction: str, max_tokens: int) -> None:
        self._site, self._decoder, self._most = site, Decoder(site, name), max_tokens
        sampling = {"max_tokens": max_tokens, "temperature": 0.0}
        self._leaf = Decoding(prompt=lambda row: BETWEEN.join((instruction, *row)), sampling=sampling)
        merge = f"These are answers to one task, each for a part of the texts. The task: {instruction}"
        merge += "\nMake one answer for all texts of them."
        self._node = Decoding(prompt=lambda row: BETWEEN.join((merge, *row)), sampling=sampling)
        self._room = self._leaf_room = self._gap = self._overhead = self._fan = 0

    async def open(self, work: StatementWork) -> str:
        """See `SqlOperator.open`. StatementRefused where the context has no room for two answers."""
        found = await self._decoder.open(work)
        if not self._decoder.is_local:
            raise self._site.refused(
                f"{self._decoder.name} is a remote model, whose tokenizer and context are not known here:"
                " name a model of this machine"
            )
        self._room = self._decoder.context - self._most
        [leaf] = await self._decoder.prompt_tokens(work, [()], self._leaf)
        [node] = await self._decoder.prompt_tokens(work, [()], self._node)
        [self._gap] = await self._decoder.text_tokens(work, [BETWEEN])
        self._leaf_room, self._overhead = self._room - leaf - MARGIN, node + MARGIN
        self._fan = (self._room - self._overhead) // (self._most + self._gap)
        if self._fan < 2 or self._leaf_room < MARGIN:
            most = (self._decoder.context - self._overhead - 2 * self._gap) // 3
            raise self._site.refused(
                f"max_tokens is {self._most:,}: two such answers and the instruction do not fit the"
                f" {self._decoder.context:,} tokens of {self._decoder.name}: lower it to {max(most, 0):,}, or"
                " shorten the instruction"
            )
        return found

    @property
    def model(self) -> str | None:
        """The model's name, once it is open."""
        return self._decoder.name

    async def tree(self, work: StatementWork, group: str) -> Tree | None:
        """Of a group as a JSON list of texts; None where there are none."""
        try:
            texts = [text for text in _read(group) if text is not None]
        except msgspec.DecodeError:
            raise self._site.refused("what it reads is no list of texts") from None
        leaves: list[Arguments] = []
        size = self._leaf_room + 1
        for text, tokens in await self._pieces(work, texts):
            if size + tokens + self._gap > self._leaf_room:
                leaves.append(())
                size = 0
            leaves[-1] += (text,)
            size += tokens + self._gap
        return await self._exact(work, leaves) if leaves else None

    def cost(self, tree: Tree | None) -> RowCost:
        """Of a tree: leaves exactly, what is above them at most."""
        if tree is None:
            return RowCost(0, requests=0)
        requests, tokens, width = len(tree.leaves), tree.tokens, len(tree.leaves)
        while width > 1:
            sizes = [size for size in self._sizes(width) if size > 1]
            tokens += sum(map(self._bound, sizes))
            requests += len(sizes)
            width = len(self._sizes(width))
        return RowCost(tokens, requests * self._most, requests, exact=len(tree.leaves) == 1)

    async def fold(
        self, work: StatementWork, trees: Sequence[Tree | None], parts: KeptParts
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """The value of each tree, all trees level by level; nothing at times, so that limits are looked at.
        Answers of `parts` are kept as they come."""
        yield [RowValue(place, None) for place, tree in enumerate(trees) if tree is None]
        level = {place: list(tree.leaves) for place, tree in enumerate(trees) if tree is not None}
        cut: set[int] = set()
        keeper, decoding = Keeper(parts), self._leaf
        try:
            while level:
                least = 1 if decoding is self._leaf else 2  # a node of one answer is that answer
                asked = sorted({one for wanted in level.values() for one in wanted if len(one) >= least})
                answers = self._kept(parts, asked, decoding)
                missing = [one for one in asked if one not in answers]
                async with aclosing(self._decoder.generate(work, missing, decoding)) as portions:
                    async for portion in portions:
                        answers |= {missing[one.index]: (one.value, one.cut) for one in portion}
                        keeper.add([(self._key(missing[one.index], decoding), one) for one in portion])
                        yield []
                found: dict[int, list[Value]] = {}
                for place, wanted in level.items():
                    values = [answers.get(one, (one[0], False)) for one in wanted]
                    cut |= {place} if any(was_cut for _, was_cut in values) else set()
                    found[place] = [value for value, _ in values]
                ended = {p: values for p, values in found.items() if len(values) == 1 or None in values}
                yield [
                    RowValue(place, values[0] if len(values) == 1 else None, place in cut)
                    for place, values in ended.items()
                ]
                level = {
                    place: await self._nodes(work, values)
                    for place, values in found.items()
                    if place not in ended
                }
                decoding = self._node
        finally:
            await keeper.close()

    def _key(self, row: Arguments, decoding: Decoding) -> Arguments:
        return ("part" if decoding is self._leaf else "answers", *row)

    def _kept(
        self, parts: KeptParts, rows: Sequence[Arguments], decoding: Decoding
    ) -> dict[Arguments, tuple[Value, bool]]:
        found: Mapping[Arguments, tuple[Value, bool]] = parts.find([self._key(row, decoding) for row in rows])
        return {key[1:]: value for key, value in found.items()}

    def _sizes(self, width: int) -> list[int]:
        """How many answers each node of a level takes: all alike but for one."""
        nodes = -(-width // self._fan)
        return [(number + 1) * width // nodes - number * width // nodes for number in range(nodes)]

    def _bound(self, size: int) -> int:
        """The most tokens of a prompt of so many answers."""
        return self._overhead + size * (self._most + self._gap)

    async def _nodes(self, work: StatementWork, values: Sequence[Value]) -> list[Arguments]:
        """Answers as the rows of nodes, each within its bound."""
        texts = await self._within(work, [str(value) for value in values])
        nodes: list[Arguments] = []
        for size in self._sizes(len(texts)):
            nodes.append(tuple(texts[:size]))
            del texts[:size]
        while True:
            counts = await self._decoder.prompt_tokens(work, nodes, self._node)
            large = [count > self._bound(len(node)) for node, count in zip(nodes, counts, strict=True)]
            if not any(large):
                return nodes
            nodes = [
                tuple(text[: len(text) * 7 // 8] for text in node) if is_large else node
                for node, is_large in zip(nodes, large, strict=True)
            ]

    async def _within(self, work: StatementWork, texts: list[str]) -> list[str]:
        """Answers of at most max_tokens, read again. A text may have more tokens than it was written with."""
        while True:
            counts = await self._decoder.text_tokens(work, texts)
            if max(counts) <= self._most:
                return texts
            texts = [
                text[: min(len(text) - 1, len(text) * self._most // count)] if count > self._most else text
                for text, count in zip(texts, counts, strict=True)
            ]

    async def _pieces(self, work: StatementWork, texts: Sequence[str]) -> list[tuple[str, int]]:
        """Texts with their tokens; those that fit no leaf are cut."""
        most = self._leaf_room - self._gap
        parts = [
            part
            for text in texts
            for part in ([text] if len(text) <= LONGEST * most else _cut(text, CHARACTERS_PER_TOKEN * most))
        ]
        found: list[tuple[str, int]] = []
        for part, count in zip(parts, await self._decoder.text_tokens(work, parts), strict=True):
            if count <= most or len(part) < 2:
                found.append((part, count))
            else:
                found += await self._pieces(work, _cut(part, -(-len(part) // (count // most + 1))))
        return found

    async def _exact(self, work: StatementWork, leaves: list[Arguments]) -> Tree:
        """Leaves that do fit, by the tokens of their whole prompts."""
        while True:
            counts = await self._decoder.prompt_tokens(work, leaves, self._leaf)
            if max(counts) <= self._room:
                return Tree(tuple(leaves), sum(counts))
            leaves = [
                half
                for leaf, count in zip(leaves, counts, strict=True)
                for half in (_halves(leaf) if count > self._room else [leaf])
            ]


def _halves(leaf: Arguments) -> list[Arguments]:
    first, *rest = leaf
    if rest:
        return [leaf[: len(leaf) // 2], leaf[len(leaf) // 2 :]]
    if len(first) < 2:
        raise ContextLengthExceeded(
            f"the character {first!r} alone does not fit the context: shorten the instruction", param="sql"
        )
    return [(part,) for part in _cut(first, -(-len(first) // 2))]


def _cut(text: str, size: int) -> list[str]:
    """Pieces of at most so many characters, behind white space where a piece has some in its second half."""
    pieces: list[str] = []
    size, start = max(1, size), 0
    while start < len(text):
        end = start + size
        if end < len(text):
            spaces = (text.rfind(one, start + size // 2, end) + 1 for one in (" ", "\n"))
            end = max(spaces) or end
        pieces.append(text[start:end])
        start = end
    return pieces
