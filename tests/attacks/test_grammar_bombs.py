"""A constraint that takes hours or gigabytes is refused within its limits, and others do not wait for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from attacks.grammar_bombs import (
    PATTERNS,
    SCHEMAS,
    numbered,
    optional_properties,
    requests,
)
from headrace.errors import EngineStopped, Overloaded
from headrace.grammar.compiler import GrammarCompiler
from headrace.grammar.constraint import Constraint, GrammarError, choice_constraint, schema_constraint
from headrace.grammar.matcher import Grammars
from headrace.grammar.token_table import TokenTable
from reliability.served import Served, served
from tiny import tiny_model

EOS = 256
TEMPLATE = (
    "{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}"
)
GRACE_S = 60.0  # for a machine that is busy; the limit itself is in CPU seconds


def table() -> TokenTable:
    tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]
    return TokenTable(
        tokens=tokens,
        special_ids=frozenset({EOS}),
        eos_ids=frozenset({EOS}),
        encode=lambda t: list(t.encode()),
    )


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(table)
    yield made
    made.close()


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_bombs_are_refused(grammars: Grammars, name: str) -> None:
    with pytest.raises(
        GrammarError, match=r"more than 1 s or 256 MB|cannot be (compiled|followed)|too many digits"
    ) as caught:
        grammars.matcher(schema_constraint(SCHEMAS[name], param="response_format"))
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_end_in_a_matcher_or_a_refusal(grammars: Grammars, name: str) -> None:
    try:
        matcher = grammars.matcher(Constraint("regex", PATTERNS[name]))
        for _ in range(64):
            matcher.mask()
            matcher.accept(ord("a"))
    except GrammarError:
        pass


def test_a_refusal_is_remembered(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = schema_constraint(numbered(SCHEMAS["20 patterns at once"], 1))
    with pytest.raises(GrammarError):
        grammars.matcher(bomb)
    monkeypatch.setattr(GrammarCompiler, "_compiled", None)  # nothing is compiled any more
    with pytest.raises(GrammarError, match="more than 1 s"):
        grammars.matcher(bomb)


def test_others_compile_beside_bombs(grammars: Grammars) -> None:
    grammars.matcher(Constraint("regex", "known"))
    bombs = [schema_constraint(numbered(SCHEMAS["20 patterns at once"], 10 + index)) for index in range(3)]
    with ThreadPoolExecutor(len(bombs)) as pool:
        running = [pool.submit(grammars.matcher, bomb) for bomb in bombs]
        time.sleep(0.2)
        for index in range(8):
            grammars.matcher(Constraint("regex", f"other {index}"))
            grammars.matcher(Constraint("regex", "known"))
        still = sum(not one.done() for one in running)
        assert still, "the bombs have ended before the others: nothing was shown"
        assert all(isinstance(one.exception(), GrammarError) for one in running)


def test_the_compiler_is_started_again_when_it_is_killed(grammars: Grammars) -> None:
    grammars.matcher(Constraint("regex", "before"))
    [child] = children_of(os.getpid(), "headrace.grammar.compile_server")
    os.kill(child, signal.SIGKILL)
    with suppress(Overloaded):  # it was not seen to be dead when it was asked
        grammars.matcher(Constraint("regex", "after"))
    grammars.matcher(Constraint("regex", "after all"))


def test_a_fork_that_is_killed_is_no_fault_of_its_grammar(grammars: Grammars) -> None:
    """The kernel kills one of them for want of memory; what the next one is asked for compiles."""
    grammars.matcher(Constraint("regex", "before the fork"))  # it starts with the first grammar
    [server] = children_of(os.getpid(), "headrace.grammar.compile_server")
    bomb = schema_constraint(numbered(SCHEMAS["20 patterns at once"], 2), param="response_format")
    compiling = grammars.compile(bomb)
    kill_forks_until(compiling, server)
    error = compiling.exception()
    assert isinstance(error, Overloaded) and error.reason == "grammars"
    assert "that compiled response_format was lost (ended by SIGKILL)" in error.message
    [again] = children_of(os.getpid(), "headrace.grammar.compile_server")
    assert again == server
    grammars.matcher(Constraint("regex", "after the fork"))
    with pytest.raises(GrammarError, match="more than 1 s"):  # was not remembered as anything
        grammars.matcher(bomb)


def kill_forks_until(ended: Future[Any], server: int) -> None:
    """Kill all forks of a compile server, also those that wait for work, until that has ended."""
    while not ended.done():
        for fork in children_of(server, "headrace.grammar.compile_server"):
            with suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)
        time.sleep(0.01)


def test_the_compiler_has_no_secrets(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "secret-key")
    fresh = Grammars(table)
    fresh.matcher(Constraint("regex", "a"))
    for child in children_of(os.getpid(), "headrace.grammar.compile_server"):
        assert b"secret-key" not in Path(f"/proc/{child}/environ").read_bytes()
    fresh.close()


def test_nothing_is_left_when_it_is_closed() -> None:
    fresh = Grammars(table)
    fresh.matcher(Constraint("regex", "a"))
    compiling = fresh.compile(schema_constraint(SCHEMAS["20 patterns at once"]))
    fresh.close()
    assert isinstance(compiling.exception(GRACE_S), EngineStopped)
    assert isinstance(fresh.compile(Constraint("regex", "b")).exception(GRACE_S), EngineStopped)


def test_thousands_of_choices_are_followed(grammars: Grammars) -> None:
    choices = [f"choice {index * 7919 % 100003:x}" for index in range(4096)]
    matcher = grammars.matcher(choice_constraint(choices))
    text = b""
    while not matcher.finished:
        forced = matcher.forced
        allowed = [byte for byte in range(256) if matcher.mask()[byte // 32] >> (byte % 32) & 1]
        token = allowed[0] if forced is None else forced
        matcher.accept(token)
        text += bytes([token])
    assert text.decode() in choices


def test_a_thousand_optional_properties_are_followed(grammars: Grammars) -> None:
    matcher = grammars.matcher(schema_constraint(optional_properties(1000)))
    for byte in b'{"p0':
        assert matcher.mask()[byte // 32] >> (byte % 32) & 1
        matcher.accept(byte)


# -- through HTTP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(
        tiny_model(tmp_path_factory.mktemp("bombs"), chat_template=TEMPLATE), "--threads", "1"
    ) as running:
        yield running


def post(server: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    url = f"http://127.0.0.1:{server.port}{path}"
    return httpx.post(url, json=body, timeout=GRACE_S, trust_env=False)


def model_of(server: Served) -> str:
    return server.get("/v1/models")["data"][0]["id"]


def test_every_surface_refuses_and_names_the_field(server: Served) -> None:
    bomb = numbered(SCHEMAS["a remainder of 99,999,989 states"], 3)
    for path, body, field in requests(model_of(server), bomb):
        reply = post(server, path, body)
        if (
            path == "/v1/messages"
        ):  # its tools cannot be strict: their arguments are not held then, with a warning
            assert reply.status_code == 200, (path, reply.text)
            [warning] = [one for one in reply.json()["warnings"] if "needs more than 1 s" in one["message"]]
            assert warning["param"] == field
            continue
        assert reply.status_code == 400, (path, reply.text)
        error = reply.json()["error"]
        text = error if isinstance(error, str) else error["message"]
        assert text.startswith(f"{field} needs more than 1 s or 256 MB"), (path, text)


def test_the_server_answers_while_bombs_compile(server: Served) -> None:
    model, stop, outcomes = model_of(server), threading.Event(), list[int]()
    bombs = [
        numbered(SCHEMAS[name], 50 + index)
        for index, name in enumerate(
            ("20 patterns at once", "several remainders", "patterns and their products")
        )
    ]

    def attack(bomb: dict[str, Any]) -> None:
        path, body, _ = next(requests(model, bomb))
        outcomes.append(post(server, path, body).status_code)

    threads = [threading.Thread(target=attack, args=(bomb,)) for bomb in bombs]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    hello = [{"role": "user", "content": "hello " * 60}]
    answered = 0
    while any(thread.is_alive() for thread in threads) and answered < 12:
        number = answered
        for path, body in [
            ("/v1/responses", {"model": model, "input": "hi", "max_output_tokens": 16}),
            ("/v1/messages", {"model": model, "messages": hello, "max_tokens": 4}),
            (
                "/api/chat",
                {"model": model, "messages": hello, "stream": False, "options": {"num_predict": 4}},
            ),
            ("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 4, "guided_regex": "[ab]{4}"}),
            (
                "/v1/completions",
                {"model": model, "prompt": "a", "max_tokens": 4, "guided_regex": f"{number}"},
            ),
            ("/tokenize", {"model": model, "prompt": "hello " * 1000}),
        ]:
            reply = post(server, path, body)
            assert reply.status_code == 200, (path, reply.text)
            answered += 1
    assert answered, "the bombs ended first: nothing was shown"
    stop.set()
    for thread in threads:
        thread.join(GRACE_S)
    assert set(outcomes) <= {400, 503} and len(outcomes) == len(bombs)


def test_what_a_client_left_is_not_compiled(server: Served) -> None:
    """Hundreds of bombs whose clients are gone delay the next client by few of them."""
    model = model_of(server)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        for index in range(30):
            path, body, _ = next(requests(model, numbered(SCHEMAS["20 patterns at once"], 100 + index)))
            with pytest.raises(httpx.TimeoutException):
                client.post(path, json=body, timeout=0.02)
    body = {"model": model, "prompt": "a", "max_tokens": 4, "guided_regex": "[cd]{4}"}
    assert post(server, "/v1/completions", body).status_code == 200


def test_a_request_whose_compiler_is_killed_gets_503(server: Served) -> None:
    model = model_of(server)
    assert post(server, "/v1/completions", guided(model, "a")).status_code == 200
    [compiler] = descendants_of(server.process.pid, "headrace.grammar.compile_server")
    path, body, _ = next(requests(model, numbered(SCHEMAS["20 patterns at once"], 200)))
    with ThreadPoolExecutor(1) as pool:
        replied = pool.submit(post, server, path, body)
        kill_forks_until(replied, compiler)
    reply = replied.result()
    assert reply.status_code == 503, reply.text
    assert reply.json()["error"]["code"] == "overloaded" and reply.headers["retry-after"] == "1"
    assert "was lost (ended by SIGKILL)" in reply.json()["error"]["message"]
    assert post(server, "/v1/completions", guided(model, "b")).status_code == 200
    os.kill(compiler, signal.SIGKILL)
    post(server, "/v1/completions", guided(model, "c"))
    assert post(server, "/v1/completions", guided(model, "d")).status_code == 200


def guided(model: str, regex: str) -> dict[str, Any]:
    return {"model": model, "prompt": "a", "max_tokens": 4, "guided_regex": regex}


def parents_of(module: str) -> dict[int, int]:
    """Of each process the one that started it; those of other programs than `module` are negative."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                is_one = module.encode() in (entry / "cmdline").read_bytes()
                found[int(entry.name)] = parent if is_one else -parent
    return found


def children_of(pid: int, module: str) -> list[int]:
    return [one for one, parent in parents_of(module).items() if parent == pid]


def descendants_of(pid: int, module: str) -> list[int]:
    """Also of its children, of which workers are forks; not their own forks."""
    parents = parents_of(module)
    found: list[int] = []
    for one, parent in parents.items():
        above = parent
        while above > 0 and above != pid:
            above = abs(parents.get(above, 0))
        if parent > 0 and above == pid and parents.get(parent, 0) <= 0:
            found.append(one)
    return found
