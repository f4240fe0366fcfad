"""`headrace import`: what a spicepod says is in the headrace.toml, or it is listed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

from headrace.config.datasets import read_datasets
from headrace.config.spicepod import read_spicepod
from headrace.errors import UsageError

POD = """
version: v1
kind: Spicepod
name: shop
secrets:
  - from: env
    name: env
datasets:
  - from: postgres:public.orders
    name: orders
    params:
      pg_host: db.example
      pg_port: 5433
      pg_db: shop
      pg_user: reader
      pg_pass: ${ secrets:ORDERS_PASSWORD }
    time_column: updated_at
    acceleration:
      enabled: true
      engine: duckdb
      mode: file
      refresh_mode: append
      refresh_check_interval: 1m30s
  - from: s3://bucket/taxi/
    name: taxi-trips
    params: {file_format: parquet, s3_region: eu-west-1, s3_auth: key, s3_key: AKIA, s3_secret: "${env:S3}"}
  - {from: "file://data/people.csv", name: people}
  - {from: "duckdb:main.parts", name: parts, params: {duckdb_open: parts.db}}
  - {from: "https://example.org/a.csv", name: web, acceleration: {enabled: false}}
embeddings:
  - {from: "huggingface:huggingface.co/sentence-transformers/all-MiniLM-L6-v2", name: small}
models:
  - {from: "openai:gpt-5", name: large, params: {openai_api_key: "${secrets:OPENAI}"}}
  - {from: "file:models/mine", name: mine}
"""


def test_what_is_understood() -> None:
    found = read_spicepod(POD.replace("taxi-trips", "taxi").encode())
    assert found.problems == ()
    made = tomllib.loads(found.text)
    datasets = read_datasets(made["datasets"])
    assert set(datasets) == {"orders", "taxi", "people", "parts", "web"}
    orders = datasets["orders"]
    assert (orders.source, orders.host, orders.port) == ("postgres:public.orders", "db.example", 5433)
    assert (orders.user, orders.database, orders.secret) == ("reader", "shop", "env:ORDERS_PASSWORD")
    assert orders.accelerate == {"refresh": "append", "time_column": "updated_at", "every_s": 90.0}
    assert datasets["parts"].source == "duckdb:parts.db#main.parts"
    assert datasets["people"].source == "file:data/people.csv"
    assert datasets["taxi"].secret == "env:S3"
    assert made["models"] == {
        "small": {"path": "sentence-transformers/all-MiniLM-L6-v2"},
        "large": {"provider": "openai", "model": "gpt-5"},
        "mine": {"path": "models/mine"},
    }
    assert made["providers"] == {"openai": {"api_key_env": "OPENAI"}}


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("runtime: {caching: {sql_results: {enabled: true}}}", "runtime.caching.sql_results.enabled"),
        ("views: [{name: v, sql: SELECT 1}]", "views[0].sql"),
        ("datasets: [{from: 'github:x/y', name: a}]", "datasets[0].from"),
        ("datasets: [{from: 'file:a.csv', name: a, description: words}]", "datasets[0].description"),
        (
            "datasets: [{from: 'postgres:t', name: a, params: {pg_sslmode: require}}]",
            "datasets[0].params.pg_sslmode",
        ),
        ("datasets: [{from: 'postgres:t', name: a, params: {pg_pass: plain}}]", "datasets[0].params.pg_pass"),
        (
            "datasets: [{from: 'postgres:t', name: a, params: {pg_host: '${env:H}'}}]",
            "datasets[0].params.pg_host",
        ),
        (
            "datasets: [{from: 'file:a.csv', name: a, columns: [{name: x, embeddings: [{from: e}]}]}]",
            "columns[0]",
        ),
        ("datasets: [{from: 'file:a.csv', name: a, acceleration: {engine: sqlite}}]", "acceleration.engine"),
        (
            "datasets: [{from: 'file:a.csv', name: a, acceleration: {retention_period: 1h}}]",
            "retention_period",
        ),
        (
            "datasets: [{from: 'file:a.csv', name: a, acceleration: {refresh_check_interval: soon}}]",
            "interval",
        ),
        ("datasets: [{from: 'file:a.csv'}]", "datasets[0].name"),
        ("datasets: [7]", "datasets[0]"),
        ("models: [{from: 'openai:gpt-5', name: m, tools: auto}]", "models[0].tools"),
        ("models: [{from: 'bedrock:x', name: m}]", "models[0].from"),
        ("secrets: [{from: aws_secrets_manager, name: a}]", "secrets[0].from"),
        ("dependencies: [other/pod]", "dependencies[0]"),
        ("snapshots: {enabled: true}", "snapshots.enabled"),
    ],
)
def test_what_is_not_understood_is_listed(more: str, path: str) -> None:
    found = read_spicepod(f"version: v1\nkind: Spicepod\n{more}\n".encode())
    assert any(path in one for one in found.problems), found.problems
    every = [one.partition(": ")[0] for one in found.problems]
    assert read_spicepod(f"version: v1\nkind: Spicepod\n{more}\n".encode(), every).problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: [", "no YAML"),
        ("- a", "no mapping"),
        ("a: !!python/object/apply:os.system ['true']", "no YAML"),
        ("[" * 1500, "nested too deeply|no YAML"),
        ("x: [" + "1," * 20_000 + "]", "more than 10,000 parts"),
        ("a" * (1 << 20) + "b", "at most 1,048,576"),
    ],
)
def test_what_is_no_spicepod(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_spicepod(text.encode())


def test_the_command_writes_once_and_nothing_with_problems(
    inside: Callable[..., Outcome], tmp_path: Path
) -> None:
    pod, made = tmp_path / "spicepod.yaml", tmp_path / "headrace.toml"
    pod.write_text(POD)
    done = inside("import", "spicepod.yaml", "-o", "headrace.toml")
    assert done.code == 2 and "taxi-trips" in done.stderr  # no name of a dataset here
    more = "name: shop\nruntime: {cors: {enabled: true}}\n"
    pod.write_text(POD.replace("taxi-trips", "taxi").replace("name: shop\n", more))
    done = inside("import", "spicepod.yaml", "-o", "headrace.toml")
    assert done.code == 2 and "runtime.cors.enabled: there is no setting for it" in done.stderr
    assert not made.exists()
    words = ("import", "spicepod.yaml", "--without", "runtime.cors.enabled", "-o", "headrace.toml")
    assert inside(*words).code == 0
    assert "[datasets.orders]" in made.read_text()
    assert inside(*words).code == 2  # it is there
