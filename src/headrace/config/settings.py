"""All settings of a process: those of a model and those of a server, typed and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from headrace.config.journal_settings import JOURNAL
from headrace.config.model_settings import ModelSettings
from headrace.config.profiles import Profile
from headrace.config.setting import Setting, markdown, table_of
from headrace.config.stderr_log import LogFormat
from headrace.config.values import (
    IDLE_SECONDS,
    OBJECT,
    ORIGINS,
    PATHS,
    SECONDS,
    SIZE,
    SWITCH,
    integer,
    number,
    one_of,
    path,
    text,
    texts,
)


def default_cache_dir() -> Path:
    """Where packed weights are kept unless told otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headrace"


def default_store() -> Path:
    """Where the store is kept unless told otherwise."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headrace" / "headrace.sqlite3"


class Settings(ModelSettings, frozen=True, kw_only=True):
    """Every setting. Make one with `config.sources.load_settings`."""

    store: Annotated[
        Path | None,
        Setting(
            help="SQLite file of keys, logs and saved responses",
            values=path("file"),
            shown_default="~/.local/share/headrace/headrace.sqlite3",
        ),
    ] = None
    ledger: Annotated[
        str | None,
        Setting(
            help="address of a PostgreSQL database, postgresql://…, with the ledger and budgets of all "
            "servers that name it",
            values=text("url"),
            shown_default="in the store",
        ),
    ] = None
    memory: Annotated[
        int | None,
        Setting(help="memory for all models together", values=SIZE, shown_default="free memory at startup"),
    ] = None
    keep_alive: Annotated[
        float,
        Setting(
            help="time after which an unused model is unloaded; never: only if another needs the memory",
            values=IDLE_SECONDS,
            shown_default="never",
            scopes=("server", "model", "request"),
        ),
    ] = -1.0
    load_timeout: Annotated[
        float,
        Setting(help="time that a request waits for its model to load; then it gets 503", values=SECONDS),
    ] = 60.0
    load_on_demand: Annotated[
        bool,
        Setting(
            help="also load bundled and hub models that clients name, not only configured ones",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    served_model_name: Annotated[
        tuple[str, ...],
        Setting(
            help="names of the first model for clients: the first one is shown, the others are aliases",
            values=texts("name[,name]"),
            shown_default="its own",
            aliases=("--alias",),
        ),
    ] = ()
    override_generation_config: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="default sampling parameters of requests, in place of the model's own, "
            'such as {"temperature": 0.7, "max_tokens": 512}',
            values=OBJECT,
            shown_default="none",
            scopes=("server", "model"),
        ),
    ] = None
    default_chat_template_kwargs: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="variables of the chat template for requests that do not give them, "
            'such as {"enable_thinking": false}',
            values=OBJECT,
            shown_default="none",
            scopes=("server", "model"),
        ),
    ] = None
    adapters: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="LoRA adapters of the first model (of a model in its own table), folders of PEFT or GGUF"
            " files: requests ask for MODEL:NAME",
            values=PATHS,
            shown_default="none",
            scopes=("server", "model"),
            aliases=("--lora-modules",),
        ),
    ] = None
    adapter_dir: Annotated[
        Path | None,
        Setting(
            help="the folder from which POST /v1/load_lora_adapter may load; without it adapters come from"
            " the settings alone",
            values=path("folder"),
            shown_default="none",
        ),
    ] = None
    guards: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="checks of what goes into models and comes out, by name, such as "
            '{"private": {"kind": "pii", "action": "redact"}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    moderation: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='classifier of /v1/moderations, such as {"model": "guard", "map": {"hate": "hate"}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    providers: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="providers of remote models by name, such as "
            '{"work": {"dialect": "openai_chat", "base_url": "http://gpu:8000/v1"}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    budgets: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="most that may be spent at providers, by name, such as "
            '{"team": {"keys": ["alice", "bob"], "usd_per_month": 200}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    prices: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="prices that override the price list, in dollars per million tokens, such as "
            '{"openai/gpt-5": {"input": 1.25, "output": 10}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    cache: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='response cache, such as {"exact": "auto", "near": "draft", "ttl": "7d"}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    journal: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="folder of the journal, by which requests continue after the server was killed; "
            'in headrace.toml a table, such as {"folder": "journal", "fsync": "power"}',
            values=JOURNAL,
            shown_default="none",
        ),
    ] = None
    adapt: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='collect traffic of keys that have agreed, such as {"enabled": true, "keys": ["alice"]}; '
            "see The adaptive loop",
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    cluster: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='several processes of each model, such as {"replicas": 4}; see Several replicas',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    datasets: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="data that SQL may read, by name, such as "
            '{"orders": {"from": "postgres:public.orders", "secret": "env:ORDERS_PASSWORD"}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    sql: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='limits of a statement of SQL, such as {"seconds": 10, "memory": "512MiB"}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    search: Annotated[
        Mapping[str, object] | None,
        Setting(
            help="PostgreSQL database with pgvector where indexes are kept, such as "
            '{"store": "postgresql://search@db/search", "secret": "env:SEARCH_PASSWORD"}',
            values=OBJECT,
            shown_default="folders beside the store",
        ),
    ] = None
    evals: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='checks of answers over rows, by name, such as {"topics": {"rows": "SELECT …", "scorers": '
            '{"right": "match"}}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    mcp: Annotated[
        Mapping[str, object] | None,
        Setting(
            help='MCP servers by name, such as {"shop": {"command": ["shop-mcp"], "allow": ["find_*"]}}',
            values=OBJECT,
            shown_default="none",
        ),
    ] = None
    mcp_lock: Annotated[
        Path | None,
        Setting(
            help="file with the tools that were approved",
            values=path("file"),
            shown_default="headrace.lock beside headrace.toml",
        ),
    ] = None
    node_usd_per_hour: Annotated[
        float,
        Setting(
            help="what this machine costs; the ledger divides it among requests of its models",
            values=number(0, 100_000, "dollars"),
        ),
    ] = 0.0
    any_model_name: Annotated[
        bool,
        Setting(
            help="answer with the default model if clients name one that is not served",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    profile: Annotated[
        Profile | None,
        Setting(
            help="what the server is for, which sets slo, max_turn_ms and sizes of steps where they are not "
            "given: short steps for voice and chat, large ones for batch",
            values=one_of(Profile),
            shown_default="none",
        ),
    ] = None
    host: Annotated[str, Setting(help="address the server listens on", values=text("address"))] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(help="port the server listens on; 0 picks a free one", values=integer(0, 65535, unit="port")),
    ] = 8080
    flight_port: Annotated[
        int | None,
        Setting(
            help="port of Arrow Flight SQL, for ADBC and JDBC, with headrace[flight]; 0 picks a free one",
            values=integer(0, 65535, unit="port"),
            shown_default="none",
        ),
    ] = None
    api_key: Annotated[
        tuple[str, ...],
        Setting(
            help="keys that clients must send, with the scope infer; several are separated by commas;"
            " commands that ask a server send the first one",
            values=texts("key[,key]"),
            shown_default="none",
        ),
    ] = ()
    admin_api_key: Annotated[
        tuple[str, ...],
        Setting(
            help="keys that may also load, unload, pull, rename and delete models (scope admin)",
            values=texts("key[,key]"),
            shown_default="none",
        ),
    ] = ()
    key_rpm: Annotated[
        int | None,
        Setting(
            help="requests that each key may make in a minute", values=integer(1), shown_default="no limit"
        ),
    ] = None
    key_read_rpm: Annotated[
        int,
        Setting(
            help="reads (GET) that each key, or without keys each address, may make in a minute",
            values=integer(1),
        ),
    ] = 6000
    key_tpm: Annotated[
        int | None,
        Setting(
            help="tokens, of prompts and answers, that each key may use in a minute",
            values=integer(1, unit="tokens"),
            shown_default="no limit",
        ),
    ] = None
    key_max_concurrency: Annotated[
        int | None,
        Setting(help="requests of each key at the same time", values=integer(1), shown_default="no limit"),
    ] = None
    key_priority: Annotated[
        int | None,
        Setting(
            help="most urgent priority that requests of a key may have, lower is more urgent; "
            "keys with the scope admin may have any",
            values=integer(-1_000_000, 1_000_000, unit="priority"),
            shown_default="0",
        ),
    ] = None
    max_concurrent_requests: Annotated[
        int, Setting(help="maximum in-flight requests, running or queued; more get 503", values=integer(1))
    ] = 2048
    max_queued_tokens: Annotated[
        int,
        Setting(
            help="maximum prompt tokens in the queue; beyond it requests get 503",
            values=integer(1, unit="tokens"),
        ),
    ] = 2**22
    log_requests: Annotated[
        bool,
        Setting(
            help="keep a line per request in the store; otherwise the latest 1,000 of each key in memory",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    log_max_requests: Annotated[
        int, Setting(help="requests of each key that are kept; older ones are deleted", values=integer(1))
    ] = 10_000
    log_max_bytes: Annotated[
        int,
        Setting(help="size of all requests that are kept", values=SIZE, shown_default="256MiB"),
    ] = 256 * 2**20
    log_max_days: Annotated[
        float, Setting(help="how long requests are kept", values=number(0, 36_500, "days"))
    ] = 30.0
    log_content: Annotated[
        bool, Setting(help="also keep the content of requests", values=SWITCH, shown_default="false")
    ] = False
    log_format: Annotated[
        LogFormat,
        Setting(
            help="lines on stderr; as JSON also one for each request, with its trace and without its text",
            values=one_of(LogFormat),
        ),
    ] = "text"
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            help="Host and Origin names accepted on a loopback address besides localhost",
            values=texts("name[,name]"),
            shown_default="none",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Setting(
            help="origins whose pages may call the server from a browser, "
            "such as https://app.example; localhost is all of its ports, * is all",
            values=ORIGINS,
            shown_default="none",
        ),
    ] = ()
    disable_page: Annotated[
        bool,
        Setting(help="answer / with a line of text, not with the page", values=SWITCH, shown_default="false"),
    ] = False
    disable_metrics: Annotated[
        bool, Setting(help="answer /metrics and /v1/live with 501", values=SWITCH, shown_default="false")
    ] = False
    disable_slots: Annotated[
        bool,
        Setting(
            help="answer /slots, which shows how many sequences run, with 501",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    show_prompts: Annotated[
        bool,
        Setting(
            help="put the prompt as the model reads it into `__verbose` of every reply to a chat "
            "that does not say verbose itself",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    tool_format: Annotated[
        str | None,
        Setting(
            help="syntax of tool calls, e.g. hermes",
            values=text("name"),
            shown_default="detected from the chat template",
        ),
    ] = None
    shutdown_timeout: Annotated[
        float,
        Setting(help="time that in-flight requests get to finish when the server stops", values=SECONDS),
    ] = 30.0

    @property
    def cache_folder(self) -> Path:
        """`cache_dir`, or its default under the user's cache folder."""
        return self.cache_dir if self.cache_dir is not None else default_cache_dir()

    @property
    def store_file(self) -> Path:
        """`store`, or its default under the user's data folder."""
        return self.store if self.store is not None else default_store()


SETTINGS: Mapping[str, Setting] = table_of(Settings)
MODEL_SETTINGS = ModelSettings.__struct_fields__
"""Settings of every command that loads a model."""


def settings_table() -> str:
    """The settings as a Markdown table, for the documentation."""
    return markdown(SETTINGS)
