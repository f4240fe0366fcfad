"""What a student that writes says: conversations answered by a model with the student's adapter."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.adapt.students.ladder import TaskExample
from headrace.adapt.students.student import MAX_TOKENS, StudentAnswer
from headrace.chat.messages import Message
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import InvalidRequest
from headrace.gateway.answers import score_of
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.handler import Handler, open_stream
from headrace.inference.local_handler import LocalHandler
from headrace.inference.loop_thread import LoopThread
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import ChatRequest
from headrace.inference.result import collect
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.storage.keys import KeyLimits
from headrace.tasks.pii.operators import PLACEHOLDER

AT_ONCE = 8
CACHE_BYTES = 256 << 20
"""Of keys and values, in a process that only judges."""
_SAID = list[dict[str, str | None]]
ROLES = ("system", "developer", "user", "assistant")
Conversation = tuple[Message, ...]
Writes = Callable[[Sequence[Conversation], int], list[StudentAnswer]]
"""What a student says to conversations, in so many tokens at most."""


class Writer(Struct, frozen=True):
    """A student in this process. Its `words` may also be cut, or stand for personal data."""

    answers: Writes
    words: Writes


def conversation_of(example: TaskExample) -> Conversation | None:
    """An example's messages; None where they are not texts of people and assistants alone."""
    said = msgspec.json.decode(example.messages, type=_SAID)
    if not said or any(one["role"] not in ROLES or not one["content"] for one in said):
        return None
    return tuple(Message(one["role"] or "", one["content"]) for one in said)


def weights_digest(folder: Path) -> str:
    """By which the weights of an adapter or a model are known. OSError where they are not there."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"]:
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()[:16]


def tokens_of(examples: Sequence[TaskExample]) -> int:
    """Tokens that an answer may have: more than any that was seen needs."""
    return min(MAX_TOKENS, 16 + max((len(one.answer) for one in examples), default=0))


async def written(
    handler: Handler,
    model: str,
    conversations: Sequence[Conversation],
    tokens: int,
    *,
    whole: bool = True,
) -> list[StudentAnswer]:
    """Answers to conversations, after all others have been served. An answer that was cut, or that stands for
    personal data, is none, but where `whole` is false."""
    places = asyncio.Semaphore(AT_ONCE)

    async def answer(messages: Conversation) -> StudentAnswer:
        call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits()), background=True)
        request = ChatRequest(
            id=f"student-{call.request_id}",
            model=model,
            messages=messages,
            sampling={"temperature": 0.0, "max_tokens": tokens, "logprobs": 0},
            priority=BATCH_PRIORITY,
            fit_context=True,
        )
        async with places:
            try:
                result = await collect(await open_stream(handler, request, call))
            except InvalidRequest:  # such as a conversation that is too long for it
                return StudentAnswer(None)
        [choice] = result.prompts[0].choices
        text, score = choice.output.content, score_of(choice, "logprob")
        if not whole:
            return StudentAnswer(text)
        if choice.ended.reason != "stop" or score is None or not text or PLACEHOLDER.search(text):
            return StudentAnswer(None, nano_usd=call.machine_nano_usd or None)
        return StudentAnswer(text, score, call.machine_nano_usd or None)

    return list(await asyncio.gather(*map(answer, conversations)))


@contextmanager
def writer(base: Path, adapter: Path | None, threads: int | None = None) -> Generator[Writer]:
    """A model, with an adapter if any, in this process, until the block ends. Raises what prevents loading
    it."""
    options = EngineOptions(
        threads=threads, max_num_seqs=AT_ONCE, kv_cache_memory=CACHE_BYTES, speculative="off", cache_dir=None
    )
    model = load_model(str(base), options)
    try:
        adapters = {} if adapter is None else {"student": model.engine.load_adapter(adapter).digest}
        name = ":student" if adapters else model.name
        threads_of = ModelThreads(1)
        handler, loop = LocalHandler(OneModel(model, adapters), threads_of), LoopThread()
        try:
            yield Writer(
                lambda asked, tokens: loop.run(written(handler, name, asked, tokens)),
                lambda asked, tokens: loop.run(written(handler, name, asked, tokens, whole=False)),
            )
        finally:
            handler.close()
            loop.close()
            threads_of.close()
    finally:
        model.close()
