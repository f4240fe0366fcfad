"""ai() over rows of a CSV file, compared with a client that asks row by row over 16 connections.

    python bench/data/ai_rows.py banking77/train.csv.xz --rows 10000 --distinct 10

A server of `mini` is started on a free port of 127.0.0.1. Rows repeat so that the given share of them is
different. The engine alone is the same different prompts through `LLM` in one batch, without server and SQL.
Then chats are timed alone, and while a statement computes.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import lzma
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import headrace
from headrace.chat.messages import Message

INSTRUCTION = (
    "You sort messages that customers of a bank have written. Read the message with care and say in"
    " a few words what it is about: a card that has not come, a payment that was declined, a transfer"
    " that is late, money that is missing from the account, a rate of exchange, a limit, a fee, an"
    " identity that must be proved, a top-up, a refund, a lost phone, or something else. Do not repeat"
    " it, do not greet, and do not explain."
)
TOKENS = 8
CONNECTIONS = 16


def rows_of(path: Path, count: int, share: int) -> list[str]:
    """So many texts, of which `share` percent are different, mixed by a fixed seed."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        texts = list(dict.fromkeys(row["text"] for row in csv.DictReader(file)))
    different = texts[: max(1, count * share // 100)]
    rows = list(itertools.islice(itertools.cycle(different), count))
    random.Random(7).shuffle(rows)
    return rows


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server over rows.csv in a folder."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (folder / "headrace.toml").write_text(
        f'[datasets.rows]\nfrom = "file:{folder}/rows.csv"\n[sql]\nseconds = 600\nrows = 1000000\n'
    )
    command = [Path(sys.executable).with_name("headrace"), "serve", "mini", "--port", str(port)]
    variables = os.environ | {"HEADRACE_STORE": str(folder / "store.sqlite3")}
    with subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    if httpx.get(f"{address}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait()


def chat(text: str) -> dict[str, object]:
    """The body of the request that ai() makes of a row."""
    content = f"{INSTRUCTION}\n\n{text}"
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "chat_template_kwargs": {"in_scope": False},  # ai() asks the model whatever is on its card
    }


async def row_by_row(address: str, rows: list[str]) -> tuple[float, list[str]]:
    """Seconds, and an answer for each row."""
    limits = httpx.Limits(max_connections=CONNECTIONS)
    places = asyncio.Semaphore(CONNECTIONS)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=600, trust_env=False) as client:

        async def one(text: str) -> str:
            async with places:
                reply = await client.post("/v1/chat/completions", json=chat(text))
                return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])

        began = time.perf_counter()
        answers = await asyncio.gather(*map(one, rows))
        return time.perf_counter() - began, list(answers)


STATEMENT = f"SELECT id, ai('{INSTRUCTION}', text, max_tokens := {TOKENS}) AS a FROM rows ORDER BY id"
CARE = ("", " and thought", " and patience")
"""Of the statements that are timed: none has values that an earlier one has kept."""


def warm_up(address: str) -> None:
    """The engine that is measured alone has computed something before, too; so has the process of SQL."""
    httpx.post(f"{address}/v1/chat/completions", json=chat("Hello"), timeout=600).raise_for_status()
    sql = "SELECT ai('Say it.', text, max_tokens := 2) FROM (SELECT * FROM rows LIMIT 1)"
    httpx.post(f"{address}/v1/sql", json={"sql": sql}, timeout=600).raise_for_status()


def by_sql(address: str, care: str = "") -> tuple[float, list[str], dict[str, int]]:
    """Seconds, an answer for each row, and what models did."""
    began = time.perf_counter()
    sql = STATEMENT.replace("with care", f"with care{care}")
    reply = httpx.post(f"{address}/v1/sql", json={"sql": sql}, timeout=3600)
    took = time.perf_counter() - began
    found = reply.raise_for_status().json()
    return took, [row["a"] for row in found], json.loads(reply.headers["x-headrace-ai"])


def engine_alone(texts: list[str]) -> float:
    """Seconds that the engine takes for different rows in one batch."""
    with headrace.LLM("mini") as llm:
        template = llm.model.template
        assert template is not None
        llm.generate("warm up", max_tokens=2)
        prompts = [
            llm.model.tokenizer.encode(
                template.render([Message("user", f"{INSTRUCTION}\n\n{text}")]), add_special=False
            )
            for text in sorted(texts)
        ]
        began = time.perf_counter()
        llm.generate_batch(prompts, max_tokens=TOKENS, temperature=0)
        return time.perf_counter() - began


def chats(address: str, count: int) -> list[float]:
    """Milliseconds of short chats, one every 50 ms."""
    found: list[float] = []
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        for number in range(count):
            began = time.perf_counter()
            body = chat(f"list all files of user {number}") | {"max_tokens": 4}
            client.post("/v1/chat/completions", json=body).raise_for_status()
            found.append((time.perf_counter() - began) * 1e3)
            time.sleep(max(0.0, 0.05 - (time.perf_counter() - began)))
    return found


def percentile(values: list[float], part: int) -> float:
    """A percentile."""
    return statistics.quantiles(values, n=100)[part - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--distinct", type=int, default=10, help="percent")
    parser.add_argument("--client-rows", type=int, default=2000, help="of the client: all are too slow")
    parser.add_argument("--chats", type=int, default=200)
    given = parser.parse_args()
    rows = rows_of(given.file, given.rows, given.distinct)
    print(f"load before: {os.getloadavg()[0]:.1f}")
    different = list(dict.fromkeys(rows))
    before = engine_alone(different)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "rows.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *enumerate(rows)])
        with server(folder) as address:
            warm_up(address)
            runs = [by_sql(address, care) for care in CARE]
            took = statistics.median(seconds for seconds, *_ in runs)
            _, answers, usage = runs[0]
            each = ", ".join(f"{seconds:.1f}" for seconds, *_ in runs)
            print(f"sql: {took:.1f} s ({each}), {len(rows) / took:,.0f} rows/s, {usage}")
            again, same, usage = by_sql(address)
            print(f"again: {again:.1f} s, computed {usage['computed']}, same bytes: {same == answers}")
            part = rows[: given.client_rows]
            client_took, asked = asyncio.run(row_by_row(address, part))
            equal = sum(one.strip() == other for one, other in zip(asked, answers, strict=False))
            by_client, by_statement = len(part) / client_took, len(rows) / took
            print(
                f"client: {client_took:.1f} s for {len(part):,} rows, {by_client:,.0f} rows/s,"
                f" equal to sql: {equal:,}; sql is {by_statement / by_client:.1f} times as fast"
            )
            alone = chats(address, given.chats)
            body = {"sql": STATEMENT.replace("with care", "with much care")}
            with subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "import sys, httpx; httpx.post(sys.argv[1] + '/v1/sql', timeout=3600,"
                    " json={'sql': sys.argv[2]})",
                    address,
                    body["sql"],
                ]
            ) as other:
                time.sleep(1.0)
                beside = chats(address, given.chats)
                running = other.poll() is None
                other.kill()
            print(
                f"chat p50/p99 alone {percentile(alone, 50):.0f}/{percentile(alone, 99):.0f} ms, beside ai()"
                f" {percentile(beside, 50):.0f}/{percentile(beside, 99):.0f} ms; it ran throughout: {running}"
            )
    after = engine_alone(different)
    engine = (before + after) / 2
    print(
        f"engine alone: {engine:.1f} s ({before:.1f}, {after:.1f}) for {len(different):,} rows:"
        f" sql has {engine / took:.0%} of its speed"
    )
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
