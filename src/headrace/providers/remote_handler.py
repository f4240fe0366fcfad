"""A Handler for one remote target: what is asked of it becomes one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing

from headrace.errors import UsageError
from headrace.inference.call_context import HOPS, CallContext
from headrace.inference.events import Prepared, PreparedPrompt, Started
from headrace.inference.handler import Batch
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    InferenceRequest,
)
from headrace.providers.batches.api import BatchApi
from headrace.providers.batches.forms import batch_api_of
from headrace.providers.bounds import input_bound
from headrace.providers.capabilities import DEFAULTS, adapted, embeddable
from headrace.providers.dialects.registry import dialect_of
from headrace.providers.failure import AttemptFailed, Failure, error_of
from headrace.providers.remote_attempt import RemoteAttempt, Sending, key_headers, prompt_tokens
from headrace.providers.remote_embedding import RemoteEmbedding
from headrace.providers.remote_rerank import RemoteRerank
from headrace.providers.target import RemoteTarget
from headrace.providers.token_count import check_counts, count_tokens
from headrace.providers.upstream import Upstream
from headrace.providers.validation import check_output, compiled
from headrace.sampling.params import with_defaults
from headrace.telemetry.trace_context import TraceContext, trace_headers


class RemoteHandler:
    """See `Handler`. `key` returns the provider's key, None where there is none; `server_id` names this
    server among those that a request passes."""

    def __init__(
        self, target: RemoteTarget, upstream: Upstream, key: Callable[[], str | None], server_id: str
    ) -> None:
        self.target = target
        self._upstream, self._key, self._server_id = upstream, key, server_id
        self._dialect = dialect_of(target.provider.dialect)

    async def handle(self, request: InferenceRequest, call: CallContext) -> AsyncGenerator[Batch]:
        """See `Handler.handle`."""
        request = self.adapted(request, (), call)
        yield [prepared_for(request, self.target.name)]
        attempt = self.attempt(request, call)
        started = False
        try:
            async with aclosing(attempt.batches()) as batches:
                async for batch in batches:
                    if not started:
                        started = True
                        yield [Started()]
                    yield batch
        except AttemptFailed as error:
            raise error_of(error.failure, self.target.name) from error

    def most_input(self, request: GenerationRequest) -> int:
        """The most tokens that the input of a request, as it was adapted, can come to."""
        outgoing = self._dialect.outgoing(request, self.target, lambda param, message: None)
        return input_bound(request, outgoing.body, self.target)

    def adapted(
        self, request: InferenceRequest, drop: Collection[str], call: CallContext
    ) -> GenerationRequest | EmbeddingRequest:
        """The request as this target gets it; see `capabilities.adapted`."""
        if isinstance(request, EmbeddingRequest):
            return embeddable(request, self.target, drop, call)
        found = adapted(request, self.target, drop, call)
        if found.constraint is not None and self._needs_check(found):
            compiled(found.constraint, closes=found.disable_additional_properties)
        return found

    def attempt(
        self,
        request: GenerationRequest | EmbeddingRequest,
        call: CallContext,
        *,
        deadline_s: float | None = None,
        trace: TraceContext | None = None,
    ) -> RemoteAttempt | RemoteEmbedding:
        """An attempt with a request that was adapted; `deadline_s` is on the loop's clock, `trace` the
        attempt's own span. Raises AttemptFailed where there is no key."""
        sending = self._sending(call, deadline_s, trace)
        if isinstance(request, EmbeddingRequest):
            return (RemoteRerank if request.task == "rerank" else RemoteEmbedding)(request, sending)
        return RemoteAttempt(request, sending, self._check_of(request))

    async def count_tokens(self, request: ChatRequest, call: CallContext) -> int:
        """The tokens of a prompt, as the provider counts them. Raises TargetRefused where it does not."""
        check_counts(self.target)
        found = adapted(request, self.target, (), call)
        assert isinstance(found, ChatRequest)
        try:
            return await count_tokens(found, self._sending(call, None))
        except AttemptFailed as error:
            raise error_of(error.failure, self.target.name) from error

    def _sending(
        self, call: CallContext, deadline_s: float | None, trace: TraceContext | None = None
    ) -> Sending:
        own = trace or call.trace
        until_s = asyncio.get_running_loop().time() + self.target.provider.settings.total_timeout
        return Sending(
            *(self.target, self._dialect, self._upstream),
            key=self._provider_key(),
            hops=(*call.hops, self._server_id),
            trace=trace_headers(own, own.span_id),
            deadline_s=until_s if deadline_s is None else min(until_s, deadline_s),
            warn=call.warn,
            deferral=call.deferral if self.target.batches else None,
        )

    def batches(self) -> BatchApi | None:
        """The provider's batches; None where it has none. Raises AttemptFailed where there is no key."""
        form = self.target.row.batches
        if not form:
            return None
        return batch_api_of(form, self._upstream, self._dialect, self._batch_headers, self._key)

    def _batch_headers(self, hops: Sequence[str]) -> dict[str, str]:
        key = key_headers(self.target.row, self._provider_key())
        return {HOPS: ",".join((*hops, self._server_id)), **self._dialect.headers, **key}

    def _provider_key(self) -> str | None:
        provider = self.target.provider
        try:
            key = self._key()
        except UsageError as error:
            raise AttemptFailed(
                Failure(
                    phase="connect", kind="auth", message=f"has a key that cannot be read: {error.message}"
                )
            ) from error
        if key is None and provider.row.key is not None:
            remedy = f"`headrace providers add {provider.name}`, or set {provider.key_variable}"
            raise AttemptFailed(Failure(phase="connect", kind="auth", message=f"has no key: {remedy}"))
        return key

    def _needs_check(self, request: GenerationRequest) -> bool:
        wanted, row = request.constraint, self.target.row
        if wanted is None or wanted.kind not in ("json_schema", "json_object"):
            return False
        return not self._dialect.guarantees(wanted, row, closes=request.disable_additional_properties)

    def _check_of(self, request: GenerationRequest) -> Callable[[str], None] | None:
        wanted = request.constraint
        if wanted is None or not self._needs_check(request):
            return None
        closes = request.disable_additional_properties
        return lambda text: check_output(text, wanted, closes=closes)


def prepared_for(request: GenerationRequest | EmbeddingRequest, name: str) -> Prepared:
    """What is announced of a request to a remote model: its prompts have no tokens, only an estimate."""
    if isinstance(request, EmbeddingRequest):
        count = len(request.inputs)
        each = -(-prompt_tokens(request) // max(1, count))
        return Prepared(name, (PreparedPrompt((), "", each),) * count)
    texts: Sequence[str] = [""]
    if isinstance(request, CompletionRequest):
        texts = [one if isinstance(one, str) else "" for one in request.prompts]
    each = -(-prompt_tokens(request) // len(texts))
    prompts = tuple(PreparedPrompt((), text, each) for text in texts)
    params = with_defaults(DEFAULTS, request.sampling)
    return Prepared(name, prompts, params, params.n)
