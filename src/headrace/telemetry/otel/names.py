"""Names of the GenAI semantic conventions (all in development), pinned here as of their version 1.42."""

from __future__ import annotations

import re
from collections.abc import Mapping

OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOKEN_TYPE = "gen_ai.token.type"
ERROR_TYPE = "error.type"
HTTP_METHOD, URL_PATH, HTTP_STATUS = "http.request.method", "url.path", "http.response.status_code"
HEADRACE = "headrace"
EXECUTE_TOOL, RETRIEVAL = "execute_tool", "retrieval"
TOOL_NAME, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.type"
DATA_SOURCE = "gen_ai.data_source.id"
DB_SYSTEM, DB_OPERATION, DB_COLLECTION = "db.system.name", "db.operation.name", "db.collection.name"
DB_SUMMARY, DB_ROWS = "db.query.summary", "db.response.returned_rows"

REQUEST_PARAMETERS: Mapping[str, str] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""Fields of SamplingParams."""

OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/embed": "embeddings",
    "/embedding": "embeddings",
}
"""What the conventions call an endpoint's work; others have the last word of their path."""

OTHER_OPERATION = "request"
_WORD = re.compile(r"[A-Za-z_-]{1,32}")
_NOT_SERVED = frozenset({401, 403, 404, 405})

REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
TOKEN_USAGE = "gen_ai.client.token.usage"
BUCKETS: Mapping[str, tuple[float, ...]] = {
    REQUEST_DURATION: tuple(0.01 * 2**power for power in range(14)),
    TIME_TO_FIRST_TOKEN: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    TIME_PER_OUTPUT_TOKEN: (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),),
    TOKEN_USAGE: tuple(4.0**power for power in range(14)),
}


def operation_of(path: str, status: int = 200) -> str:
    """The operation that an endpoint with that path is. Ids, and what was answered with a `status` that needs
    neither a key nor an endpoint, have one name together: the SDK keeps a number of names at most, until it
    ends, and clients must not choose which."""
    known = OPERATIONS.get(path)
    if known is not None:
        return known
    word = path.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    is_served = status not in _NOT_SERVED and _WORD.fullmatch(word) is not None
    return word if is_served else OTHER_OPERATION
