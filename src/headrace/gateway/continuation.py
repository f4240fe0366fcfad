"""After an answer has broken off: another target goes on from the text that was given, where it can.

Nothing that a client has is given again, and nothing is invented: the messages end with the text so far, and
the target writes what follows. Only servers that are known to answer with what follows and nothing else are
asked (`continues` in their row), and models of this machine. Answers with calls of tools, reasoning, several
choices or a constraint end with the error: what came of these is not text that another model could go on
from.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Text
from headrace.engine.request import Usage
from headrace.gateway.target_state import TargetState
from headrace.inference.events import InferenceEvent, OutputDelta, PromptFinished
from headrace.inference.handler import Batch
from headrace.inference.requests import ChatRequest, InferenceRequest
from headrace.providers.bounds import choices_of
from headrace.providers.usage import estimated

EXACT = ("plain", "vllm", "sglang")
"""Forms of continuing whose reply begins after the last message. Mistral's may begin with it."""


class GivenText:
    """What a client has of an answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._has_more = False  # something besides text of the first choice
        self._tokens = 0

    def take(self, batch: Batch) -> None:
        """A batch goes to the client."""
        for event in batch:
            if not isinstance(event, OutputDelta):
                continue
            self._tokens += len(event.tokens) or len(event.logprobs)
            for part in event.parts:
                if isinstance(part, Text):
                    self._texts.append(part.text)
                else:
                    self._has_more = True

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)

    @property
    def tokens(self) -> int:
        """How many tokens it has: rather too many where the target did not say."""
        return self._tokens or estimated(len(self.text.encode("utf-8", "replace")))

    def continued(self, request: InferenceRequest) -> ChatRequest | None:
        """The request for what follows; None where nothing can go on exactly from here."""
        if not isinstance(request, ChatRequest) or self._has_more or not self._texts:
            return None
        if choices_of(request) > 1 or request.tools or request.constraint or request.scaling:
            return None
        if request.context or (not request.add_generation_prompt and not request.continue_final_message):
            return None
        sampling, tokens = dict(request.sampling), self.tokens
        limit = sampling.get("max_tokens")
        if limit is not None:
            if limit <= tokens:
                return None
            sampling["max_tokens"] = limit - tokens
        if sampling.get("min_tokens"):
            sampling["min_tokens"] = max(0, sampling["min_tokens"] - tokens)
        return replace(
            request,
            messages=self._messages(request),
            sampling=sampling,
            continue_final_message=True,
            prediction=None,
        )

    def _messages(self, request: ChatRequest) -> tuple[Message, ...]:
        if not request.continue_final_message:
            return (*request.messages, Message("assistant", self.text))
        last = request.messages[-1]
        return (*request.messages[:-1], replace(last, content=(last.content or "") + self.text))


def with_usage_of(tokens: int, batch: Batch) -> Batch:
    """A batch of what follows so many tokens, with the usage of the whole answer: they count as written, not
    as read."""
    return [_counted(event, tokens) for event in batch]


def _counted(event: InferenceEvent, tokens: int) -> InferenceEvent:
    if not isinstance(event, PromptFinished):
        return event
    used = event.usage
    read = max(0, used.prompt_tokens - tokens)
    usage = Usage(read, used.completion_tokens + tokens, min(used.cached_tokens, read))
    return replace(event, usage=usage)


def goes_on(state: TargetState, text: str) -> bool:
    """Whether a target can go on from a text exactly. Anthropic takes none that ends with white space."""
    if state.remote is None:
        return True
    form = state.remote.target.row.continues
    return form in EXACT and (form != "plain" or text == text.rstrip())
