"""POST /analyze, GET /supportedentities, GET /recognizers: personal data in texts, in Presidio's shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, Values, read_checked, without_effect
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service
from headrace.api.tasks.task_reply import texts_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import ParameterWarning
from headrace.tasks.pii.analyzer import Analyzer, supported_entities
from headrace.tasks.pii.custom import CustomPattern, CustomRecognizer, Steps
from headrace.tasks.pii.model_entities import asked_model, model_findings
from headrace.tasks.pii.recognizer import RecognizerResult, bundled_recognizers
from headrace.tasks.pii.spans import distinct
from headrace.tasks.task_limits import check_searched

_IGNORE_CASE = 2  # re.IGNORECASE, as Presidio takes flags of Python's re
_NAMES = Content("application/json", {"type": "array", "items": {"type": "string"}})
_NAME = Meta(max_length=256)  # with return_decision_process it stands in every result
_LANGUAGE = r"^[a-z]{2,3}$"
_ANY_LANGUAGE = "the recognizers search texts of any language"


class AdHocPattern(Struct):
    """A pattern in RE2's syntax."""

    regex: str
    score: Annotated[float, Meta(ge=0, le=1)]
    name: Annotated[str, _NAME] = ""


class AdHocRecognizer(Struct):
    """A recognizer for this request: patterns, or words that are entities."""

    supported_entity: Annotated[str, Meta(min_length=1, max_length=64)]
    name: Annotated[str, _NAME] | None = None
    supported_language: str | None = None
    patterns: list[AdHocPattern] | None = None
    deny_list: list[str] | None = None
    context: list[str] | None = None


class AnalyzeBody(RequestBody, kw_only=True):
    """Presidio's body. The recognizers that are there know no language, so that each of them searches texts
    of any; those of the request search texts of their `supported_language`."""

    no_effect: ClassVar[Mapping[str, Values]] = {
        "correlation_id": (),
        "log_decision_process": (False,),
        "trace": (),
    }
    unsupported: ClassVar[Mapping[str, Values]] = {"allow_list_match": ("exact",)}
    text: Annotated[Any, Meta(extra_json_schema={"anyOf": [{"type": "string"}, {"type": "array"}]})]
    language: Annotated[str, Meta(pattern=_LANGUAGE)]
    entities: Annotated[list[str], Meta(max_length=1000)] | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    return_decision_process: bool | None = None
    ad_hoc_recognizers: list[AdHocRecognizer] | None = None
    allow_list: Annotated[list[str], Meta(max_length=10_000)] | None = None
    context: Annotated[list[str], Meta(max_length=1000)] | None = None
    regex_flags: Annotated[int, Meta(ge=0, le=511)] = 26

    def warnings(self) -> list[ParameterWarning]:
        """A warning unless `language` chooses among the recognizers of the request."""
        chooses = any(one.supported_language for one in self.ad_hoc_recognizers or ())
        return [] if chooses else [without_effect("language", _ANY_LANGUAGE)]

    def names(self) -> set[str]:
        """The entities that are asked for and that no recognizer of the request is for."""
        return set(self.entities or ()).difference(
            one.supported_entity for one in self.ad_hoc_recognizers or ()
        )

    def analyzer(self, *, with_model: bool) -> Analyzer:
        """What searches, beside a model or without; raises InvalidRequest."""
        ignore_case = bool(self.regex_flags & _IGNORE_CASE)
        steps = Steps()
        custom = [
            CustomRecognizer(
                one.supported_entity,
                [
                    CustomPattern(regex=it.regex, score=it.score, name=it.name, ignore_case=ignore_case)
                    for it in one.patterns or ()
                ],
                words=one.deny_list or (),
                context=one.context or (),
                name=one.name,
                param="ad_hoc_recognizers",
                steps=steps,
            )
            for one in self.ad_hoc_recognizers or ()
            if one.supported_language in (None, self.language)
        ]
        return Analyzer(
            self.entities or None,
            threshold=self.score_threshold or 0.0,
            custom=custom,
            allow=self.allow_list or (),
            context=self.context or (),
            with_model=with_model,
        )


class RecognitionMetadata(Struct, frozen=True):
    """Which recognizer has found it."""

    recognizer_name: str
    recognizer_identifier: str


class AnalysisExplanation(Struct, frozen=True):
    """Why it is one."""

    recognizer: str
    pattern_name: str | None
    pattern: str | None
    original_score: float
    score: float
    textual_explanation: str | None
    score_context_improvement: float
    supportive_context_word: str
    validation_result: bool | None
    regex_flags: int | None = None


class AnalyzeResult(Struct, frozen=True):
    """Characters [start, end) of the text, counted in code points."""

    entity_type: str
    start: int
    end: int
    score: float
    analysis_explanation: AnalysisExplanation | None
    recognition_metadata: RecognitionMetadata


_RESULTS = Content("application/json", {"type": "array"}, (AnalyzeResult,))


@Endpoint("POST", "/analyze", body=AnalyzeBody, content=(_RESULTS,))
async def analyze(http: HttpRequest) -> Response:
    """Personal data in a text, or in each of several. Those of several kinds may overlap. Names of persons
    and places are found where `entities` asks for them, by the first model that finds entities."""
    body = await read_checked(AnalyzeBody, http)
    return json_response(Raw(await done(http, _analyzed(body, call_of(http), get_service(http)))))


async def _analyzed(body: AnalyzeBody, call: CallContext, service: Service) -> bytes:
    texts = texts_of(body.text, "text")
    check_searched(texts, "text")
    names = body.names()
    model = asked_model(service.runner, None, names)
    analyzer = await service.search_in_thread(lambda: body.analyzer(with_model=model is not None))
    more: Sequence[Sequence[RecognizerResult]] = [()] * len(texts)
    if model is not None:
        more = await model_findings(service.runner, model, texts, call, names, analyzer.threshold)
    explain = bool(body.return_decision_process)

    def search(index: int) -> bytes:
        found = distinct([*analyzer.find(texts[index]), *more[index]])
        return msgspec.json.encode([_result(one, explain=explain) for one in found])

    found = [await service.search_in_thread(partial(search, index)) for index in range(len(texts))]
    return found[0] if isinstance(body.text, str) else b"[" + b",".join(found) + b"]"


def _result(one: RecognizerResult, *, explain: bool) -> AnalyzeResult:
    why = AnalysisExplanation(
        recognizer=one.recognizer,
        pattern_name=one.pattern,
        pattern=one.pattern,
        original_score=one.pattern_score,
        score=one.score,
        textual_explanation=None,
        score_context_improvement=round(one.score - one.pattern_score, 6),
        supportive_context_word=one.context or "",
        validation_result=one.validated,
    )
    who = RecognitionMetadata(one.recognizer, one.recognizer)
    return AnalyzeResult(one.label, one.start, one.end, one.score, why if explain else None, who)


@Endpoint("GET", "/supportedentities", content=(_NAMES,))
async def list_supported_entities(http: HttpRequest) -> Response:
    """The entities that /analyze finds, in texts of every `language`."""
    return _names(http, supported_entities())


@Endpoint("GET", "/recognizers", content=(_NAMES,))
async def list_recognizers(http: HttpRequest) -> Response:
    """The names of the recognizers, for texts of every `language`."""
    return _names(http, list(dict.fromkeys(one.name for one in bundled_recognizers())))


def _names(http: HttpRequest, names: list[str]) -> Response:
    unknown = set(http.query_params) - {"language"}
    if unknown:
        name = min(unknown)
        raise InvalidRequest(f"unknown parameter {name[:80]!r}", param=name[:80], code="unknown_parameter")
    if "language" in http.query_params:
        call_of(http).warnings.append(without_effect("language", _ANY_LANGUAGE))
    return json_response(Raw(msgspec.json.encode(names)))
