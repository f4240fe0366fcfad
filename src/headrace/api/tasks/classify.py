"""POST /classify and /v1/classify: labels of texts, the model's own or the request's, in the shapes of vLLM
and of Cohere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.cohere.classify import Examples, cohere_classified
from headrace.api.cohere.schema import CohereClassifications
from headrace.api.http.body import Values, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.api.service import Service, get_service, new_id, now_s
from headrace.api.tasks.task_body import TruncatingBody
from headrace.api.tasks.task_reply import TEXT_LIST, TEXTS, refuse_twins, texts_of, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.tasks.classify import classify
from headrace.tasks.label_scores import Classification
from headrace.tasks.zero_shot import TEMPLATE, zero_shot


class ClassifyBody(TruncatingBody, kw_only=True):
    """Texts to classify: with `labels` of your own by a model of entailment, an embedder or a decoder.

    `inputs`, with or without `examples`, are Cohere's; the reply is, too. `truncate` true or END cuts long
    texts at their end. With `activation` (vLLM: `use_activation`) false scores are logits.
    """

    no_effect: ClassVar[Mapping[str, Values]] = {"user": ()}
    unsupported: ClassVar[Mapping[str, Values]] = {"preset": ()}

    input: Annotated[Any, loose(TEXTS)] = None
    inputs: Annotated[list[str] | None, loose(TEXT_LIST)] = None
    examples: Examples | None = None
    model: str | None = None
    labels: list[str] | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    activation: bool | None = None
    use_activation: bool | None = None

    def warnings(self) -> list[ParameterWarning]:
        """Refuses what goes with labels or inputs only, and what says the same."""
        if (self.input is None) == (self.inputs is None):
            raise InvalidRequest(
                "send either input or inputs (Cohere)", param="input", code="missing_required_parameter"
            )
        for name in ("hypothesis_template", "multi_label"):
            if self.labels is None and getattr(self, name) is not None:
                raise InvalidRequest(f"{name} needs labels: send both or none", param=name)
        if self.examples is not None and self.inputs is None:
            raise InvalidRequest("examples go with inputs, not with input", param="examples")
        refuse_twins(self, ("activation", "use_activation"))
        for name in ("labels", "activation", "use_activation", "truncate_prompt_tokens"):
            if self.inputs is not None and getattr(self, name) is not None:
                raise InvalidRequest(f"{name} goes with input, not with inputs", param=name)
        for name in ("activation", "use_activation"):
            if self.labels is not None and getattr(self, name) is not None:
                raise InvalidRequest(f"{name} goes with the model's own labels", param=name)
        if self.truncate == "START":
            raise InvalidRequest("truncate START is not supported: send END", param="truncate")
        return []

    @property
    def cuts(self) -> bool:
        """Whether long texts are cut."""
        return self.truncate is True or self.truncate == "END"


class ClassifiedText(Struct, frozen=True):
    """The likeliest label of a text; `probs` has one number for each of `labels`."""

    index: int
    label: str
    probs: tuple[float, ...]
    num_classes: int
    labels: tuple[str, ...]


class ClassifyReply(Struct, frozen=True):
    """The texts, in their order."""

    id: str
    created: int
    model: str
    data: list[ClassifiedText]
    usage: EmbeddingUsage
    object: str = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


async def found_in(
    body: ClassifyBody, texts: Sequence[str], service: Service, call: CallContext
) -> list[Classification]:
    """The labels of the texts of a body."""
    truncate, runner = body.cut(body.cuts), body.runner(service)
    if body.labels is not None:
        return await zero_shot(
            runner,
            body.model,
            texts,
            body.labels,
            call,
            hypothesis_template=TEMPLATE if body.hypothesis_template is None else body.hypothesis_template,
            multi_label=bool(body.multi_label),
            truncate=truncate,
        )
    raw = False in (body.activation, body.use_activation)
    return await classify(runner, body.model, texts, call, truncate=truncate, raw=raw)


async def _classified(http: HttpRequest) -> Response:
    body = await read_checked(ClassifyBody, http)
    call = call_of(http)
    if body.inputs is not None:
        texts, runner = texts_of(body.inputs, "inputs"), body.runner(get_service(http))
        work = cohere_classified(runner, body.model, texts, body.examples, call, truncate=body.cuts)
        return json_response(await done(http, work))
    found = await done(http, found_in(body, texts_of(body.input, "input"), get_service(http), call))
    data = [
        ClassifiedText(index, one.label, one.scores, len(one.labels), one.labels)
        for index, one in enumerate(found)
    ]
    reply = ClassifyReply(
        new_id("classify"), now_s(), call.model, data, usage_of(call), warnings=call.warnings or UNSET
    )
    return json_response(reply)


@Endpoint("POST", "/v1/classify", body=ClassifyBody, reply=(ClassifyReply, CohereClassifications))
async def classify_v1(http: HttpRequest) -> Response:
    """The labels of texts with their probabilities."""
    return await _classified(http)


@Endpoint("POST", "/classify", body=ClassifyBody, reply=(ClassifyReply, CohereClassifications))
async def classify_unversioned(http: HttpRequest) -> Response:
    """As /v1/classify."""
    return await _classified(http)
