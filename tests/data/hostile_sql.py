"""Statements that should read or change what they must not, and a grammar that mixes them into SELECTs.

{dir} is a folder with secrets, {port} a port on which nothing may connect.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

CANARY = "C4N4RY-0f-the-secret"

TABLES = (
    "read_csv('{dir}/secret.csv')",
    "read_csv_auto(['{dir}/secret.csv'])",
    "read_text('{dir}/secret.txt')",
    "read_blob('{dir}/*')",
    "read_json('{dir}/secret.json')",
    "read_json_objects('{dir}/secret.json')",
    "read_ndjson('{dir}/secret.json')",
    "read_parquet('{dir}/x.parquet')",
    "parquet_metadata('{dir}/x.parquet')",
    "sniff_csv('{dir}/secret.csv')",
    "glob('{dir}/*')",
    "sqlite_scan('{dir}/secret.db', 't')",
    "sqlite_attach('{dir}/secret.db')",
    "read_duckdb('{dir}/secret.db')",
    "postgres_scan('host=127.0.0.1 port={port}', 'public', 't')",
    "postgres_query('x', 'SELECT 1')",
    "postgres_attach('host=127.0.0.1 port={port}')",
    "mysql_query('x', 'SELECT 1')",
    "read_csv('http://127.0.0.1:{port}/x.csv')",
    "query('SELECT 1')",
    "query_table('duckdb_settings')",
    "json_execute_serialized_sql('{}')",
    "duckdb_databases()",
    "duckdb_secrets()",
    "duckdb_settings()",
    "duckdb_views()",
    "duckdb_tables()",
    "duckdb_functions()",
    "duckdb_logs()",
    "duckdb_external_file_cache()",
    "duckdb_temporary_files()",
    "pragma_database_list()",
    "pragma_table_info('orders')",
    "pragma_storage_info('orders')",
    "which_secret('x', 'http')",
    "checkpoint()",
    "force_checkpoint()",
    "enable_logging()",
    "test_all_types()",
    "seq_scan('orders')",
    "arrow_scan(1, 2, 3)",
    "python_map_function(1)",
    "pandas_scan(1)",
    "load_aws_credentials()",
    "copy_dir()",
    "summary('orders')",
    "repeat_row(1, num_rows = 10)",
    "iceberg_scan('{dir}')",
    "delta_scan('{dir}')",
    "'{dir}/secret.csv'",
    '"{dir}/secret.csv"',
    "'{dir}/secret.json'",
    "'http://127.0.0.1:{port}/x.csv'",
    "information_schema.tables",
    "pg_catalog.pg_class",
    "main.orders",
    "memory.main.orders",
    "system.main.duckdb_settings",
    "temp.orders",
    "sqlite_master",
    "pg_settings",
    "duckdb_settings",
    "__source_orders",
    "orders AT (VERSION => 1)",
    "(DESCRIBE orders)",
    "(SHOW TABLES)",
    "(SHOW ALL TABLES)",
    "(SUMMARIZE '{dir}/secret.csv')",
    "(DESCRIBE '{dir}/secret.csv')",
    "(FROM '{dir}/secret.csv')",
    "(PIVOT '{dir}/secret.csv' ON a IN ('1') USING count(*))",
    "(UNPIVOT '{dir}/secret.csv' ON a)",
)
CALLS = (
    "write_blob('{dir}/new', 'x'::BLOB)",
    "write_log('x')",
    "getenv('HOME')",
    "getvariable('x')",
    "current_setting('secret_directory')",
    "nextval('s')",
    "currval('s')",
    "sleep_ms(100)",
    "pg_sleep(1)",
    "json_serialize_sql('SELECT 1')",
    "json_serialize_plan('SELECT * FROM orders')",
    "read_text('{dir}/secret.txt')",
    "pg_get_viewdef(1)",
    "current_query()",
    "txid_current()",
    "system.main.getenv('HOME')",
    "x.y.upper('a')",
    "version()",
    "setseed(0.5)",
    "in_search_path('a', 'b')",
    "__internal_decompress_string(1)",
    "ai('x', read_text('{dir}/secret.txt'))",
    "ai_filter((SELECT a FROM '{dir}/secret.csv'))",
    "classify('x', (SELECT list(a) FROM '{dir}/secret.csv'))",
    "embed('x', getenv('HOME'))",
    "pg_catalog.ai('x')",
    "x.ai('x')",
    "__ai_0('x')",
)
WHOLE = (
    "COPY orders TO '{dir}/new.csv'",
    "COPY (SELECT 1) TO '{dir}/new.parquet'",
    "EXPORT DATABASE '{dir}/new'",
    "IMPORT DATABASE '{dir}'",
    "ATTACH '{dir}/secret.db' AS s",
    "ATTACH '{dir}/secret.db' AS s (TYPE sqlite)",
    "ATTACH 'host=127.0.0.1 port={port}' AS p (TYPE postgres)",
    "DETACH memory",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE VIEW orders AS SELECT 1",
    "CREATE OR REPLACE VIEW orders AS FROM '{dir}/secret.csv'",
    "CREATE SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "CREATE MACRO m() AS TABLE SELECT * FROM '{dir}/secret.csv'",
    "CREATE FUNCTION upper(a) AS a",
    "INSERT INTO orders VALUES (1)",
    "INSERT INTO orders BY NAME SELECT * FROM orders RETURNING *",
    "UPDATE orders SET id = 1",
    "DELETE FROM orders",
    "MERGE INTO orders USING orders o ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE orders",
    "DROP VIEW orders",
    "ALTER VIEW orders RENAME TO x",
    "PRAGMA database_list",
    "PRAGMA version",
    "PRAGMA json_execute_serialized_sql('{}')",
    "CALL duckdb_settings()",
    "CALL enable_logging()",
    "SET enable_external_access = true",
    "SET VARIABLE x = 1",
    "RESET lock_configuration",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs FROM 'http://127.0.0.1:{port}'",
    "LOAD '{dir}/secret.txt'",
    "UPDATE EXTENSIONS",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT * FROM '{dir}/secret.csv'",
    "DESCRIBE orders",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SUMMARIZE orders",
    "USE memory",
    "COMMENT ON VIEW orders IS 'x'",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY orders TO '{dir}/new.csv'",
    "SELECT 1 /* ; */; DROP VIEW orders -- x",
    "WITH a AS (DELETE FROM orders RETURNING *) SELECT * FROM a",
    "WITH a AS (INSERT INTO orders VALUES (1) RETURNING *) SELECT * FROM a",
    'WITH "{dir}/secret.csv" AS (SELECT 1), b AS (SELECT 1) SELECT * FROM b, secret',
    "SELECT * FROM (WITH duckdb_settings AS (SELECT 1) SELECT 1), duckdb_settings",
    "SELECT * FROM (WITH x AS (SELECT 1) SELECT 1), x",
    "WITH pg_settings AS (SELECT * FROM pg_settings) SELECT * FROM pg_settings",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "please show me all the orders",
    "",
    ";",
    "--",
    "/*",
    "SELECT",
    "SELECT * FROM ordres",
    "SELECT * FROM orders.name",
    "SELECT * FROM orders WHERE name = 'x",
    "\ufeffSELECT\u2028* FROM '{dir}/secret.csv'",
    "FROM\u00a0'{dir}/secret.csv'",
    "SELECT (" * 3000 + "1" + ")" * 3000,
    "SELECT " + "-" * 100 + "1;" * 100,
    "SELECT * FROM orders ORDER BY (SELECT a FROM '{dir}/secret.csv')",
    "SELECT * FROM orders LIMIT (SELECT count(*) FROM '{dir}/secret.csv')",
    "SELECT * FROM orders TABLESAMPLE reservoir((SELECT 1) ROWS)",
    "SELECT list_transform([1], lambda x: (SELECT a FROM '{dir}/secret.csv'))",
    "SELECT sum(1) FILTER (WHERE (SELECT true FROM '{dir}/secret.csv')) FROM orders",
    "SELECT sum(1) OVER (PARTITION BY (SELECT a FROM '{dir}/secret.csv')) FROM orders",
    "SELECT * REPLACE ((SELECT a FROM '{dir}/secret.csv') AS id) FROM orders",
    "SELECT COLUMNS(x -> x = (SELECT a FROM '{dir}/secret.csv')) FROM orders",
    "VALUES ((SELECT a FROM '{dir}/secret.csv'))",
    "SELECT * FROM unnest((SELECT list(a) FROM '{dir}/secret.csv'))",
    "SELECT * FROM orders, LATERAL (SELECT * FROM read_text('{dir}/' || orders.name))",
    "SELECT * FROM orders JOIN orders o ON (SELECT true FROM '{dir}/secret.csv')",
    "SELECT * FROM orders QUALIFY (SELECT true FROM '{dir}/secret.csv')",
    "SELECT 1 UNION ALL BY NAME SELECT a FROM '{dir}/secret.csv'",
    "SELECT DISTINCT ON ((SELECT a FROM '{dir}/secret.csv')) 1",
    "SELECT * FROM orders GROUP BY GROUPING SETS (((SELECT a FROM '{dir}/secret.csv')))",
    'SELECT 1::"{dir}/secret.csv"',
    "SELECT ['{dir}/secret.csv'].read_text()",
    "SELECT '{dir}/secret.txt'.read_text()",
)
HOSTILE = (
    *WHOLE,
    *(f"SELECT * FROM {table}" for table in TABLES),
    *(f"SELECT {call}" for call in CALLS),
)


def statements(count: int, seed: int) -> Iterator[str]:
    """Random statements: most parts are plain, some are hostile, some are damaged."""
    drawn = random.Random(seed)
    for _ in range(count):
        grown = _Growth(drawn).query(drawn.randint(0, 2))
        if drawn.random() < 0.05:
            at = drawn.randrange(len(grown))
            grown = grown[:at] + drawn.choice([";", "'", '"', "(", "--", "/*", "$$", " ", "\\"]) + grown[at:]
        if drawn.random() < 0.03:
            grown += "; " + drawn.choice(WHOLE[:-40])
        yield grown


class _Growth:
    """One statement; about a third get a hostile part."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self._hostility = drawn.choice([0.0, 0.0, 0.15, 0.3])
        self._ctes: list[str] = []

    def query(self, depth: int) -> str:
        pick = self._drawn
        text = f"SELECT {', '.join(self.value(depth) for _ in range(pick.randint(1, 3)))}"
        if pick.random() < 0.85:
            text += f" FROM {self.relation(depth)}"
            text += f" WHERE {self.value(depth)} IS NOT NULL" if pick.random() < 0.5 else ""
        text += f" ORDER BY {self.value(depth)}" if pick.random() < 0.2 else ""
        text += f" LIMIT {pick.choice(['3', '(SELECT 1)', '10%'])}" if pick.random() < 0.2 else ""
        if depth > 0 and pick.random() < 0.2:
            text = f"({text}) {pick.choice(['UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} ({self.query(0)})"
        if depth > 0 and pick.random() < 0.3:
            name = pick.choice(["c", "orders", "d", "duckdb_settings", "sqlite_master"])
            recursive = pick.choice(["", "RECURSIVE "])
            text = f"WITH {recursive}{name} AS ({self.query(depth - 1)}) {text}"
        return text

    def relation(self, depth: int) -> str:
        pick = self._drawn
        if pick.random() < self._hostility:
            return pick.choice(TABLES)
        plain = ["orders", "orders o", '"orders"', "range(3)", "(VALUES (1, 2)) v(id, name)", "ORDERS"]
        if depth <= 0:
            return pick.choice(plain)
        return pick.choice(
            [
                lambda: f"({self.query(depth - 1)}) q",
                lambda: f"{self.relation(depth - 1)} CROSS JOIN {self.relation(depth - 1)}",
                lambda: f"{self.relation(depth - 1)} LEFT JOIN orders z ON {self.value(0)} = {self.value(0)}",
                lambda: (
                    f"{self.relation(depth - 1)} {pick.choice(['', 'LEFT '])}JOIN orders y"
                    f" ON ai_join({self.value(0)}, y.name, 'They fit.') AND {self.value(0)} IS NOT NULL"
                ),
                lambda: f"{self.relation(0)}, LATERAL (SELECT {self.value(depth - 1)}) l",
                lambda: f"(PIVOT {self.relation(0)} ON 1 IN (1) USING count(*))",
                lambda: pick.choice(
                    [
                        f"search('docs', {self.value(0)}) s",
                        f"text_search(docs, 'x' || {self.value(0)}, top := {self.value(0)})",
                        f"vector_search('{{dir}}/secret.csv', 'x', filter := {self.value(depth - 1)})",
                    ]
                ),
                lambda: pick.choice(plain),
            ]
        )()

    def value(self, depth: int) -> str:
        pick = self._drawn
        if pick.random() < self._hostility / 2:
            return pick.choice(CALLS)
        plain = ["1", "'a'", "NULL", "id", "name", "*", "COLUMNS('.*')", "orders", "[1, 2]", "{'a': 1}"]
        if depth <= 0:
            return pick.choice(plain)
        inner = lambda: self.value(depth - 1)  # noqa: E731
        return pick.choice(
            [
                lambda: f"({self.query(depth - 1)})",
                lambda: f"upper({inner()}::VARCHAR)",
                lambda: f"CASE WHEN {inner()} IS NULL THEN {inner()} ELSE {inner()} END",
                lambda: f"EXISTS ({self.query(depth - 1)})",
                lambda: f"{inner()} IN ({self.query(0)})",
                lambda: f"list_transform([1, 2], lambda x: {inner()})",
                lambda: f"count(*) FILTER (WHERE {inner()} IS NULL)",
                lambda: f"row_number() OVER (PARTITION BY {inner()} ORDER BY {inner()})",
                lambda: f"try_cast({inner()} AS {pick.choice(['INTEGER', 'DATE', 'JSON', 'VARCHAR[]'])})",
                lambda: f"coalesce({inner()}, {inner()})",
                lambda: f"ai({inner()}, {inner()}, max_tokens := 1)",
                lambda: f"ai_filter('Is it?', {inner()})",
                lambda: f"classify({inner()}, ['a', {inner()}])",
                lambda: pick.choice(
                    [
                        f"ai_agg({inner()}, 'Say:' ORDER BY {inner()}) FILTER (WHERE {inner()} IS NULL)",
                        f"ai_summarize(DISTINCT {inner()}, max_tokens := {pick.choice(['2', inner()])})",
                        f"ai_agg({inner()}, {inner()}) OVER (ORDER BY {inner()})",
                        f"ai_join({inner()}, {inner()}, 'They fit.', max_pairs := 50)",
                        f"ai_extract({inner()}, {{'a': 'string'}})",
                        f"similarity({inner()}, {inner()}) > 0.5",
                        f"ai_probability({inner()}, {inner()})",
                        f"redact({inner()})",
                        f"embed({inner()})",
                    ]
                ),
                lambda: pick.choice(plain),
            ]
        )()
