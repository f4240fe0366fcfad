"""Datasets in S3: Parquet, CSV, JSON and Delta from a server that speaks its protocol (moto's)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server", reason="needs moto[s3,server]")
boto3: Any = pytest.importorskip("boto3", reason="needs moto[s3,server]")
duckdb: Any = pytest.importorskip("duckdb", reason="needs headrace[data]")


from headrace.data.client import Rows  # noqa: E402
from headrace.data.engine import DataEngine, SourceDown  # noqa: E402

BUCKET, SECRET = "files", "c4n4ry-secret"


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    """Of a server in a process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline_s and server.poll() is None
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def client(address: str) -> Any:
    made = boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id="me",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    made.create_bucket(Bucket=BUCKET)
    return made


def dataset(address: str, place: str, **more: Any) -> dict[str, Any]:
    return {
        "from": place,
        "endpoint": address,
        "region": "us-east-1",
        "user": "me",
        "secret": "env:S3_KEY",
    } | more


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", SECRET)


def rows_of(engine: Any, sql: str) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in Rows(engine.sql(sql)).arrow().columns), strict=True))


def test_files_in_s3(address: str, client: Any, tmp_path: Path) -> None:
    one = duckdb.connect()
    for part in range(3):
        file = tmp_path / f"{part}.parquet"
        one.execute(f"COPY (SELECT {part} AS part, i FROM range(1000) t(i)) TO '{file}'")
        client.upload_file(str(file), BUCKET, f"lines/{part}.parquet")
    client.put_object(Bucket=BUCKET, Key="people.csv", Body=b"id,name\n0,Ann\n1,Bob\n2,Cid\n")
    client.put_object(
        Bucket=BUCKET, Key="a folder/tags.json", Body=json.dumps([{"id": 1, "tag": "x"}]).encode()
    )
    datasets = {
        "lines": dataset(address, f"s3://{BUCKET}/lines/*.parquet"),
        "people": dataset(address, f"s3://{BUCKET}/people.csv"),
        "tags": dataset(address, f"s3://{BUCKET}/a folder/tags.json"),
    }
    with closing(DataEngine(datasets, None, tmp_path)) as engine:
        found = rows_of(
            engine,
            "SELECT name, tag, count(*), sum(i) FROM lines JOIN people ON part = people.id "
            "LEFT JOIN tags ON tags.id = people.id GROUP BY ALL ORDER BY name",
        )
    assert found == [("Ann", None, 1000, 499500), ("Bob", "x", 1000, 499500), ("Cid", None, 1000, 499500)]


def test_a_file_that_is_not_there_is_named_without_the_secret(
    address: str, client: Any, tmp_path: Path
) -> None:
    client.put_object(Bucket=BUCKET, Key="other.csv", Body=b"a\n1\n")
    datasets = {
        "gone": dataset(address, f"s3://{BUCKET}/gone.csv"),
        "other": dataset(address, f"s3://{BUCKET}/other.csv"),
    }
    with closing(DataEngine(datasets, None, tmp_path)) as engine:
        with pytest.raises(SourceDown, match="gone") as caught:
            engine.sql("SELECT * FROM gone")
        assert SECRET not in str(caught.value)
        assert rows_of(engine, "SELECT a FROM other") == [(1,)]
