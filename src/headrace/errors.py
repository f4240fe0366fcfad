"""Every error that users see. Each message states the cause, the numbers and the remedy, and each class has
an HTTP status and an exit code.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base class of all typed errors.

    `status` is the HTTP status, `code` the machine-readable code and `kind` the error type of the OpenAI
    API; `param` names the offending parameter, if any. `remedy` is what to do in general, for the
    documentation; each message says what to do about its own numbers. `should_retry` tells clients
    whether to send the request again by themselves; None leaves it to the status.
    """

    remedy: str = "Look at the server's log, and report it with the request id."
    status: int = 500
    code: str | None = None
    kind: str = "server_error"
    exit_code: int = 1
    should_retry: bool | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(HeadraceError):
    """A parameter or request body is invalid or not supported."""

    remedy = "Correct the parameter that the message names."
    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt plus the requested tokens does not fit the context. Both numbers are 0 where they are not
    known."""

    remedy = (
        "Shorten the prompt, ask for fewer tokens, or load with a larger `--max-model-len`, up to the "
        "model's own context."
    )
    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, prompt_tokens: int = 0, context_length: int = 0
    ) -> None:
        super().__init__(message, param=param)
        self.prompt_tokens, self.context_length = prompt_tokens, context_length


class TemplateError(InvalidRequest):
    """A chat template failed, exceeded its limits, or rejected the messages."""

    remedy = "Send messages that the template takes; the message quotes what it refused."
    code = "template_error"


class TemplateMissing(TemplateError):
    """The model has no chat template, so messages cannot be rendered."""

    remedy = "Use text completions (`/v1/completions`, `--raw`), or a checkpoint with a chat template."
    code = "template_missing"


class UsageError(HeadraceError):
    """The command line or the settings contradict themselves (exit code 2)."""

    remedy = "Run the command with `--help`; the message names the flag or setting."
    status = 400
    kind = "invalid_request_error"
    exit_code = 2


class ModelNotFound(HeadraceError):
    """No model of that name exists locally, and none could be downloaded."""

    remedy = "Check the name with `headrace list`; for hub models, check the network or drop `--offline`."
    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"


class CorruptFile(HeadraceError):
    """A model or cache file contradicts its own header or is truncated."""

    remedy = "Fetch the file again with `headrace pull`, or delete the cache file that the message names."
    status = 400
    code = "corrupt_file"
    kind = "invalid_request_error"


class UnsupportedModel(HeadraceError):
    """A well-formed checkpoint that this version cannot run (yet)."""

    remedy = "Use another checkpoint, or the type or format that the message calls the nearest."
    status = 400
    code = "unsupported_model"
    kind = "invalid_request_error"


class QualityBelowBound(HeadraceError):
    """A model, or the form in which it is to run, differs more from its reference than is allowed, or nobody
    has measured how much."""

    remedy = "Use a type with more bits, measure the model with `headrace bench quality`, or raise the bound."
    status = 400
    code = "quality_below_bound"
    kind = "invalid_request_error"


class OutOfMemory(HeadraceError):
    """The memory plan exceeds the free memory. `needed_bytes` is the total required, 0 if unknown."""

    remedy = "Lower `--max-model-len` or `--max-num-seqs`, use `--quantization int4`, or raise `--memory`."
    status = 503
    code = "insufficient_memory"

    def __init__(self, message: str, *, needed_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class ModelTooLarge(OutOfMemory):
    """The model exceeds the memory for models even with no other model loaded; retrying cannot help."""

    remedy = "Use `--quantization int4`, a smaller `--max-model-len`, or a machine with more memory."
    status = 400
    code = "model_too_large"
    kind = "invalid_request_error"


class Overloaded(HeadraceError):
    """The server is busy: retry after `retry_after_s`. `reason` (one word) is the label in the metrics."""

    remedy = "Wait for the seconds in `Retry-After`, then send the request again."
    status = 503
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, reason: str = "queue") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class TargetUnreachable(Overloaded):
    """The first token is predicted after the model's target (`slo`), and its `slo_policy` is to refuse."""

    remedy = (
        "Wait for the seconds in `Retry-After`, or send it with `service_tier: flex`, which has no target."
    )
    status = 429
    code = "target_unreachable"
    kind = "rate_limit_error"


class BudgetExceeded(HeadraceError):
    """An attempt might cost more than a budget has left."""

    remedy = "Wait for the budget's next period, ask for fewer tokens, or raise it in `[budgets]`."
    status = 402  # and not 429, which clients would send again
    kind = "insufficient_quota"
    code = "insufficient_quota"


class PriceUnknown(HeadraceError):
    """A budget bounds the request, and what its target costs is not known."""

    remedy = 'Give the price in `[prices."provider/model"]`, or let the budget have `unpriced = "allow"`.'
    status = 402
    kind = "insufficient_quota"
    code = "price_unknown"


class ModelLoading(Overloaded):
    """The model is being loaded."""

    remedy = "Wait for the seconds in `Retry-After`, or until `/ready` answers 200."
    code = "model_loading"


class NotEnabled(HeadraceError):
    """The endpoint is switched off by a setting."""

    remedy = "Start the server without the setting that the message names."
    status = 501
    kind = "not_supported_error"
    code = "not_enabled"


class DeadlineExceeded(HeadraceError):
    """The request's deadline passed before it finished."""

    remedy = "Give the request a later `deadline_s`, or ask for fewer tokens."
    status = 408
    code = "deadline_exceeded"
    kind = "timeout_error"


class NotResumable(HeadraceError):
    """The server was stopped while it answered, and the next one cannot go on: another model or version
    would give other bytes, and a provider would be paid twice."""

    remedy = "Send the request again."
    status = 409
    code = "not_resumable"


class EngineStopped(HeadraceError):
    """The engine has shut down or failed; it accepts no more work."""

    remedy = "Send the request again; `/health` says why the engine stopped."
    status = 503
    code = "engine_stopped"


class StoreError(HeadraceError):
    """The SQLite file cannot be read or written: disk full, file damaged, or permission denied."""

    remedy = "Make room on the disk, check permissions, or name another file with `--store`."
    code = "store_error"


class StoreBusy(Overloaded, StoreError):
    """Another program, or another request, has locked the SQLite file for too long."""

    remedy = "Wait for the seconds in `Retry-After`; end what else has locked the file of `--store`."
    code = "store_busy"


class ProgramError(HeadraceError):
    """A model definition or a pass violated a rule of the program (a bug in Headrace, not in the input)."""

    remedy = "Report it: a model definition is wrong, not your input."
    code = "program_error"


class NumericalError(HeadraceError):
    """The model produced NaN or infinite logits. Other sequences in the batch are not affected."""

    remedy = "Check the checkpoint; if it is sound, try `--quantization bf16` and report it."
    code = "numerical_error"
