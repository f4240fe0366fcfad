"""Why cases do not pass, by what stands in their name and failure. The first row that fits says the reason.

`not offered` is a feature that Headrace does not have, `failed` a difference in something that it has, and
`not portable` what no server could pass here. What fits no row is `failed` with the case's own words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

FAILED, NOT_OFFERED, NOT_PORTABLE = "failed", "not offered", "not portable"


class Miss(NamedTuple):
    """`case` is searched in `file::name` of the case, `text` in message, traceback and output."""

    case: str
    text: str
    outcome: str
    reason: str


LLAMA_CPP: Sequence[Miss] = (
    Miss(r"^test_vision|local_media|multimodal_model|with_image|vision_format", "", NOT_OFFERED, "images"),
    Miss(r"^test_lora", "", NOT_OFFERED, "adapters loaded beside a model"),
    Miss(r"^test_(router|stream)", "", NOT_OFFERED, "router mode: llama-server starts other servers"),
    Miss(r"^test_(mcp|tools_builtin|proxy)|cors_proxy", "",
         NOT_OFFERED, "MCP servers and tools that the server runs"),
    Miss(r"test_rerank_usage", "",
         NOT_PORTABLE, "counts tokens by the vocabulary of a model that cannot be had"),
    Miss(r"test_server_sleep$", "", FAILED, "/props of a model that it was never asked about loads it"),
    Miss(r"sleep_read_only", "", FAILED, "/metrics counts on in sleep, and says which models are loaded"),
    Miss(r"sleep_metrics_buckets", "",
         FAILED, "speeds in /metrics are averages since the start, not since the last look"),
    Miss(r"^test_slot_save|^test_kv_keep", "", NOT_OFFERED, "slots that are saved, restored or erased"),
    Miss(r"^test_compat_gcp", "", NOT_OFFERED, "Vertex AI's /predict"),
    Miss(r"^test_speculative", r"name resolution|Name or service|URLError",
         NOT_PORTABLE, "a model that cannot be had"),
    Miss("", r"model unavailable", NOT_PORTABLE, "a model that cannot be had"),
    Miss(r"multiple_addresses", "", NOT_OFFERED, "several addresses in one process"),
    Miss("", r"no model: router mode|flag unavailable: --tools",
         NOT_OFFERED, "router mode: llama-server starts other servers"),
    Miss(r"post_backend_sampling|post_sampling", "",
         NOT_OFFERED, "post_sampling_probs: probabilities after truncation"),
    Miss(r"return_progress|prompt_progress|llama_telemetry", "",
         NOT_OFFERED, "return_progress: events during the prompt"),
    Miss(r"ctx_shift_enabled", "", NOT_OFFERED, "context shift: nothing is cut silently"),
    Miss(r"ctx_shift_disabled_stream", "",
         FAILED, "n_predict beyond the context is refused in OpenAI's API, not cut"),
    Miss(r"no_ui|static_assets", "", NOT_OFFERED, "a web page at /; without a key only /health answers"),
    Miss(r"aliases_and_tags", "", NOT_OFFERED, "tags; a model's own name is none of its aliases"),
    Miss(r"^test_metrics|localhost_reflects",
         r"(?m)^>.*Process-Start-Time-Unix|KeyError: 'Access-Control-Allow-Origin'",
         FAILED, "looks for capitals in a header's name: names of headers have none here"),
    Miss(r"prometheus_format", "n_tokens_max|n_busy|drafts", NOT_OFFERED, "four of llama.cpp's metrics"),
    Miss(r"test_cors_options", "", FAILED, "credentials go with named origins only"),
    Miss(r"cors_origins_localhost_rejects", "", FAILED, "foreign origins get 403, not 200 without a header"),
    Miss(r"test_reasoning.*DeepSeek-R1", "does not know tools",
         FAILED, "tools that a template does not show are refused"),
    Miss(r"assistant_prefill", "",
         FAILED, "an answer goes on with the last message only where continue_final_message asks for it"),
    Miss(r"too_long", "too large", FAILED, "asserts llama.cpp's words of an error"),
    Miss(r"cached_tokens", "", FAILED, "the prefix cache keeps whole pages of 16 tokens"),
    Miss(r"empty_messages", "", FAILED, "an empty list of messages is refused"),
    Miss(r"messages7", "", FAILED, "two assistant messages at the end are allowed"),
    Miss(r"This is not a chat template", "", FAILED, "counts a space that llama.cpp puts before the text"),
    Miss("", r"assert '' is None|non empty content delta",
         FAILED, "null in the first delta of /v1/chat/completions, where OpenAI's has an empty text"),
    Miss(r"infill|completion|responses_with|responses_stream", r"(?m)^>.*match_regex",
         FAILED, "asserts text drawn with llama.cpp's random numbers"),
)  # fmt: skip

SDK: Sequence[Miss] = (
    Miss("", r"RESPX|respx|is not an instance of httpx",
         NOT_PORTABLE, "mocks the answer: no server is asked"),
    Miss("", r"(?i)not.?found.*(file_id|(message_)?batch_id|response_id|completion_id|file-abc|resp_677)",
         NOT_PORTABLE, "names an object that only the suite's mock server has"),
    Miss("", r"no model here has that id",
         NOT_PORTABLE, "names an object that only the suite's mock server has"),
    Miss("", r"there is nothing to answer",
         FAILED, "a response without input, instructions or previous_response_id"),
    Miss("", r"GET /v1/chat/completions: Method", NOT_OFFERED, "stored chat completions"),
    Miss("", r"/v1/responses/compact", NOT_OFFERED, "compacting a conversation"),
    Miss("", r"DELETE /v1/models", NOT_OFFERED, "deleting fine-tuned models"),
    Miss("", r"limit: must be", FAILED, "limit 0, which OpenAI's API forbids as well"),
    Miss("", r"audio is not supported", NOT_OFFERED, "all parameters at once, audio among them"),
    Miss("", r"access_programs is not", NOT_OFFERED, "all parameters at once, access programs among them"),
    Miss("TestEmbeddings|TestAsyncEmbeddings", r"invalid for expected schema", FAILED,
         "the SDK asks for base64 and gets it; its strict check wants numbers"),
    Miss("", r"stream_options needs stream",
         FAILED, "stream_options without stream, which OpenAI refuses as well"),
    Miss("", r"logit_bias has the key 'foo'", FAILED, "logit_bias of 'foo', which is no token"),
    Miss("", r"starting_after needs stream", FAILED, "starting_after without stream"),
    Miss("", r"conversation is no parameter", NOT_OFFERED, "conversations kept under an id"),
    Miss("", r"container is not supported", NOT_OFFERED, "all parameters at once, containers among them"),
    Miss("", r"citations: must be", NOT_OFFERED, "all parameters at once, citations among them"),
)  # fmt: skip


def reason_of(rows: Sequence[Miss], case: str, text: str) -> Miss | None:
    """The row that explains a case."""
    return next((row for row in rows if re.search(row.case, case) and re.search(row.text, text)), None)
