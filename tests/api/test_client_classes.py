"""The official client raises the class that belongs to each refusal."""

from __future__ import annotations

import openai
import pytest
from in_process import Running

from headrace.errors import DeadlineExceeded, HeadraceError, InvalidRequest, Overloaded

MESSAGES = [{"role": "user", "content": "hello"}]


class Conflicting(InvalidRequest):
    """What another request holds."""

    status = 409


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (InvalidRequest("bad"), openai.BadRequestError),
        (Conflicting("taken"), openai.ConflictError),
        (DeadlineExceeded("late"), openai.APIStatusError),
        (Overloaded("full"), openai.InternalServerError),
        (RuntimeError("a defect"), openai.InternalServerError),
    ],
)
def test_refusals(server: Running, refusal: HeadraceError, raised: type[Exception], stream: bool) -> None:
    server.model.engine.refusal = refusal
    with pytest.raises(raised):
        server.openai().chat.completions.create(model="fake/model", messages=MESSAGES, stream=stream)


def test_a_foreign_page_is_not_permitted(server: Running) -> None:
    client = server.openai(default_headers={"origin": "https://example.com"})
    with pytest.raises(openai.PermissionDeniedError):
        client.models.list()


def test_a_client_that_waits_no_longer_cancels(server: Running) -> None:
    engine = server.model.engine
    engine.go.clear()
    with pytest.raises(openai.APITimeoutError):
        server.openai(timeout=0.3).chat.completions.create(model="fake/model", messages=MESSAGES)
    assert engine.cancelled_event.wait(10)


def test_closing_a_stream_cancels(server: Running) -> None:
    engine = server.model.engine
    engine.answer, engine.pause_s = "x" * 2000, 0.005
    stream = server.openai().chat.completions.create(model="fake/model", messages=MESSAGES, stream=True)
    next(stream)
    stream.close()
    assert engine.cancelled_event.wait(10)


def test_the_same_seed_is_reported(server: Running) -> None:
    reply = server.openai().chat.completions.create(model="fake/model", messages=MESSAGES, seed=5, stop=["z"])
    assert reply.model_extra["seed"] == 5
