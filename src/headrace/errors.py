"""Every error a user can meet: cause, numbers, remedy; with its HTTP status and exit code."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every typed error.

    `status` is the HTTP status, `code` the machine-readable code and `kind` the error type of the
    OpenAI surface; `param` names the offending parameter where there is one.
    """

    status: int = 500
    code: str | None = None
    kind: str = "server_error"
    exit_code: int = 1

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(HeadraceError):
    """A parameter or a body that cannot be honored."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt (with the tokens asked for) does not fit the context."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequest):
    """A chat template failed, ran over its limits, or refused the messages."""

    code = "template_error"


class TemplateMissing(TemplateError):
    """The model has no chat template, so messages cannot be rendered."""

    code = "template_missing"


class UsageError(HeadraceError):
    """The command line or the settings contradict themselves (exit code 2)."""

    status = 400
    kind = "invalid_request_error"
    exit_code = 2


class ModelNotFound(HeadraceError):
    """No model of that name here, and none could be fetched."""

    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"


class CorruptFile(HeadraceError):
    """A model or cache file contradicts its own header, or is cut short."""

    status = 400
    code = "corrupt_file"
    kind = "invalid_request_error"


class UnsupportedModel(HeadraceError):
    """A well-formed checkpoint that this version cannot run (yet)."""

    status = 400
    code = "unsupported_model"
    kind = "invalid_request_error"


class OutOfMemory(HeadraceError):
    """The memory plan does not fit what is free; `needed_bytes` is all that it takes, 0 where not known."""

    status = 503
    code = "insufficient_memory"

    def __init__(self, message: str, *, needed_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class ModelTooLarge(OutOfMemory):
    """The model does not fit the memory for models even when it is alone there: to try again is no use."""

    status = 400
    code = "model_too_large"
    kind = "invalid_request_error"


class Overloaded(HeadraceError):
    """Not now: `retry_after_s` says when to come back, `reason` (one word) what metrics count it under."""

    status = 503
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, reason: str = "queue") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class ModelLoading(Overloaded):
    """The model is on its way into memory."""

    code = "model_loading"


class DeadlineExceeded(HeadraceError):
    """The request's own deadline passed before it finished."""

    status = 408
    code = "deadline_exceeded"
    kind = "timeout_error"


class EngineStopped(HeadraceError):
    """The engine has shut down or failed; nothing more will be computed."""

    status = 503
    code = "engine_stopped"


class StoreError(HeadraceError):
    """The SQLite file cannot be read or written: a full disk, damage, no permission."""

    code = "store_error"


class ProgramError(HeadraceError):
    """A model definition or a pass broke a rule of the program (a defect of ours, not of the input)."""

    code = "program_error"


class NumericalError(HeadraceError):
    """The model's numbers are not finite (NaN or infinite logits); other rows of the step are unharmed."""

    code = "numerical_error"
