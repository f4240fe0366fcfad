"""Arrow Flight SQL: the clients of Arrow and ADBC over a real server, under the rules of /v1/sql."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from fake import FakeModel
from in_process import Running, running_server

from headrace.errors import UsageError
from headrace.flight import rpcs, server
from headrace.flight.commands import Statement as FlightStatement
from headrace.flight.commands import Tables, any_of, handle_of, statement_of
from headrace.flight.rpcs import MAX_MESSAGE
from headrace.flight.server import FlightServer
from headrace.flight.tables import chosen
from headrace.flight.wire import NotMessage, last, numbers, pack, unpack

grpc: Any = pytest.importorskip("grpc", reason="needs headrace[flight]")
pytest.importorskip("duckdb", reason="needs headrace[data]")
arrow: Any = pytest.importorskip("pyarrow", reason="needs headrace[data]")

KEY, OTHER = "key-of-flight", "key-of-others"
SERVICE = "/arrow.flight.protocol.FlightService/"


class Flying:
    """A server with a port for Flight, and a client of Arrow."""

    def __init__(self, running: Running, flight: FlightServer) -> None:
        self.running, self.flight = running, flight
        self.url = f"grpc://127.0.0.1:{flight.port}"
        self.client = arrow.flight.FlightClient(self.url)

    def options(self, key: str = KEY) -> Any:
        return arrow.flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])

    def info(self, name: str, message: bytes = b"", key: str = KEY) -> Any:
        descriptor = arrow.flight.FlightDescriptor.for_command(any_of(name, message))
        return self.client.get_flight_info(descriptor, self.options(key))

    def rows(self, name: str, message: bytes = b"", key: str = KEY) -> Any:
        ticket = self.info(name, message, key).endpoints[0].ticket
        return self.client.do_get(ticket, self.options(key)).read_all()

    def sql(self, sql: str, key: str = KEY) -> Any:
        return self.rows("CommandStatementQuery", pack((1, sql)), key)

    def prepare(self, sql: str) -> tuple[bytes, Any]:
        """The handle of a statement, and the schema of its rows."""
        body = any_of("ActionCreatePreparedStatementRequest", pack((1, sql)))
        [result] = self.client.do_action(("CreatePreparedStatement", body), self.options())
        fields = unpack(last(unpack(result.body.to_pybytes()), 2, b""))
        return last(fields, 1, b""), arrow.ipc.read_schema(arrow.py_buffer(last(fields, 2, b"")))

    def bind(self, handle: bytes, table: Any) -> bytes:
        """The handle of the statement with parameters."""
        command = any_of("CommandPreparedStatementQuery", pack((1, handle)))
        descriptor = arrow.flight.FlightDescriptor.for_command(command)
        writer, reader = self.client.do_put(descriptor, table.schema, self.options())
        writer.write_table(table)
        writer.done_writing()
        found = reader.read()
        writer.close()  # raises what the server has refused
        return last(unpack(found.to_pybytes()), 1, b"")


@pytest.fixture(scope="module")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flying]:
    pytest.importorskip("pyarrow.flight")
    folder = tmp_path_factory.mktemp("flight")
    (folder / "people.csv").write_text("name,city,age\nAnn,Oslo,30\nBob,Rome,41\nCid,Rome,52\n")
    people: dict[str, Any] = {"from": f"file:{folder}/people.csv"}
    datasets = {
        "people": people,
        "Ruled": people | {"where": {"analyst": "city = 'Oslo'"}},
        "gone": f"file:{folder}/gone.csv",
    }
    with ExitStack() as held:
        running = held.enter_context(
            running_server(
                FakeModel(),
                flight_port=0,
                datasets=datasets,
                sql={
                    "seconds": 60,
                    "rows": 5000,
                    "parallel": 1,
                    "keys": {"key 2": {"role": "analyst", "rows": 2}},
                },
                api_key=[KEY, OTHER],
                store=str(folder / "store.sqlite3"),
            )
        )
        flight = running.beside[0]
        while running.thread.is_alive() and not flight.port:
            time.sleep(0.01)
        yield Flying(running, flight)


def test_rows_of_a_statement(flying: Flying) -> None:
    found = flying.sql("SELECT city, count(*) AS n FROM people GROUP BY city ORDER BY city")
    assert found.to_pylist() == [{"city": "Oslo", "n": 1}, {"city": "Rome", "n": 2}]
    reply = flying.running.http(headers={"authorization": f"Bearer {KEY}"}).post(
        "/v1/sql",
        json={"sql": "SELECT * FROM people"},
        headers={"accept": "application/vnd.apache.arrow.stream"},
    )
    assert arrow.ipc.open_stream(io.BytesIO(reply.content)).read_all() == flying.sql("SELECT * FROM people")


def test_long_rows_come_in_parts(flying: Flying) -> None:
    found = flying.sql("SELECT i, repeat(chr(65 + (i % 26)::INTEGER), 5000) AS t FROM range(2000) r(i)")
    assert found.num_rows == 2000
    assert found.column("i").num_chunks > 1
    assert all(text == chr(65 + i % 26) * 5000 for i, text in enumerate(found.column("t").to_pylist()))


def test_statements_with_parameters(flying: Flying) -> None:
    handle, schema = flying.prepare("SELECT name, age + ? AS later FROM people WHERE city = ? ORDER BY 1")
    assert schema.names == ["name", "later"]
    table = arrow.table({"a": [10], "b": ["Rome"]})
    bound = flying.bind(handle, table)
    assert statement_of(bound).parameters == (10, "Rome")
    found = flying.rows("CommandPreparedStatementQuery", pack((1, bound)))
    assert found.to_pylist() == [{"name": "Bob", "later": 51}, {"name": "Cid", "later": 62}]
    closing = any_of("ActionClosePreparedStatementRequest", pack((1, bound)))
    assert list(flying.client.do_action(("ClosePreparedStatement", closing), flying.options())) == []
    for bad, words in (
        (arrow.table({"a": [1, 2], "b": ["x", "y"]}), "more than one row"),
        (arrow.table({"a": [[1]], "b": ["x"]}), "a parameter is a list"),
        (arrow.table({f"c{n}": [n] for n in range(1001)}), "1,001 parameters"),
    ):
        with pytest.raises(arrow.ArrowInvalid, match=words):
            flying.bind(handle, bad)


def test_a_bomb_among_parameters_ends_in_its_own_process(flying: Flying) -> None:
    handle, _ = flying.prepare("SELECT ? AS x")
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    command = any_of("CommandPreparedStatementQuery", pack((1, handle)))
    descriptor = arrow.flight.FlightDescriptor.for_command(command)
    call = arrow.flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {KEY}".encode())], write_options=options
    )
    table = arrow.table({"x": ["a" * (1 << 30)]})
    writer, reader = flying.client.do_put(descriptor, table.schema, call)
    with pytest.raises(arrow.ArrowInvalid, match="the parameters take more than 256 MB"):
        writer.write_table(table)
        writer.done_writing()
        reader.read()
        writer.close()
    assert flying.sql("SELECT 1 AS x").to_pylist() == [{"x": 1}]


def test_what_the_server_has(flying: Flying) -> None:
    info = {one["info_name"]: one["value"] for one in flying.rows("CommandGetSqlInfo").to_pylist()}
    assert info[0] == "Headrace"
    assert info[3] is True
    some = flying.rows("CommandGetSqlInfo", pack((1, 8), (1, 1)))
    assert some.column("info_name").to_pylist() == [1, 8]
    assert flying.rows("CommandGetTables").column("table_name").to_pylist() == ["gone", "people"]
    own = flying.rows("CommandGetTables", key=OTHER).column("table_name").to_pylist()
    assert own == ["Ruled", "gone", "people"]
    described = flying.rows("CommandGetTables", pack((3, "p%"), (5, 1)))
    [schema] = [
        arrow.ipc.read_schema(arrow.py_buffer(one)) for one in described.column("table_schema").to_pylist()
    ]
    assert schema.names == ["name", "city", "age"]
    assert flying.rows("CommandGetTables", pack((5, 1))).column("table_name").to_pylist() == ["people"]
    assert flying.rows("CommandGetTables", pack((4, "VIEW"))).num_rows == 0
    assert flying.rows("CommandGetTableTypes").to_pylist() == [{"table_type": "TABLE"}]
    for name in ("CommandGetCatalogs", "CommandGetDbSchemas"):
        assert flying.rows(name).num_rows == 1
    for name in ("Primary", "Exported", "Imported"):
        assert flying.rows(f"CommandGet{name}Keys").num_rows == 0
    descriptor = arrow.flight.FlightDescriptor.for_command(
        any_of("CommandStatementQuery", pack((1, "SELECT 1 AS one")))
    )
    assert flying.client.get_schema(descriptor, flying.options()).schema.names == ["one"]
    assert {one.type for one in flying.client.list_actions(flying.options())} == {
        "CreatePreparedStatement",
        "ClosePreparedStatement",
    }


def test_rules_and_limits_are_those_of_the_key(flying: Flying) -> None:
    assert flying.sql("SELECT name FROM ruled", OTHER).to_pylist() == [{"name": "Ann"}]
    for sql, key, words in (
        ("SELECT * FROM ruled", KEY, "no dataset is named 'ruled'"),
        ("SELECT * FROM people", OTHER, "more than 2 rows"),
        ("DELETE FROM people", KEY, "only SELECT may run"),
        ("SELECT * FROM '/etc/passwd'", KEY, "no dataset is named"),
    ):
        with pytest.raises(arrow.ArrowInvalid, match=words):
            flying.sql(sql, key)
    with pytest.raises(arrow.flight.FlightUnavailableError, match="'gone'"):
        flying.sql("SELECT * FROM gone")
    for call in (flying.sql, flying.info):
        with pytest.raises(arrow.flight.FlightUnauthenticatedError, match="not valid"):
            call("CommandGetSqlInfo", key="wrong")
    with pytest.raises(arrow.flight.FlightUnauthenticatedError, match="missing"):
        list(flying.client.do_action(("CreatePreparedStatement", b"")))


def test_requests_are_in_the_log(flying: Flying) -> None:
    flying.sql("SELECT 'seen in the log' AS said")
    found = flying.sql(
        "SELECT labels['path'] AS path, labels['key'] AS key FROM headrace.task_history"
        " WHERE task = 'sql_query'"
    )
    assert {"path": "/v1/sql", "key": "key 1"} in found.to_pylist()


def test_a_password_is_a_key(flying: Flying) -> None:
    name, value = flying.client.authenticate_basic_token("anyone", KEY)
    assert (name, value) == (b"authorization", f"Bearer {KEY}".encode())
    with pytest.raises(arrow.flight.FlightUnauthenticatedError):
        flying.client.authenticate_basic_token("anyone", "wrong")


@pytest.mark.parametrize(
    ("name", "message", "code", "words"),
    [
        ("GetFlightInfo", b"\xff", "INVALID_ARGUMENT", "ends within a number"),
        ("GetFlightInfo", pack((1, 1), (3, "path")), "INVALID_ARGUMENT", "no command"),
        ("GetFlightInfo", pack((1, 2), (2, pack((1, "x"), (2, b"")))), "UNIMPLEMENTED", "no command of"),
        (
            "GetFlightInfo",
            pack((1, 2), (2, any_of("CommandStatementUpdate", b""))),
            "UNIMPLEMENTED",
            "read only",
        ),
        ("GetFlightInfo", b"\0" * (MAX_MESSAGE + 1), "RESOURCE_EXHAUSTED", "larger than max"),
        (
            "DoGet",
            pack((1, any_of("TicketStatementQuery", pack((1, b"\xc1"))))),
            "INVALID_ARGUMENT",
            "no handle",
        ),
        (
            "DoGet",
            pack((1, any_of("TicketStatementQuery", pack((1, 7))))),
            "INVALID_ARGUMENT",
            "another kind",
        ),
        ("DoAction", pack((1, "Drop")), "UNIMPLEMENTED", "no action 'Drop'"),
        ("DoExchange", b"", "UNIMPLEMENTED", ""),
    ],
)
def test_what_is_no_message(flying: Flying, name: str, message: bytes, code: str, words: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{flying.flight.port}") as channel:
        call = channel.unary_stream(SERVICE + name)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(message, metadata=[("authorization", f"Bearer {KEY}")], timeout=20))
    assert caught.value.code().name == code
    assert words in caught.value.details()


def _open_call(channel: Any, name: str, key: str, *messages: bytes) -> Any:
    """A call whose client sends no more after these messages, and does not end it."""
    ended = threading.Event()

    def sent() -> Iterator[bytes]:
        yield from messages
        ended.wait(60)

    metadata = [("authorization", f"Bearer {key}")] if key else []
    call = channel.stream_stream(SERVICE + name)(sent(), metadata=metadata)
    call.let_go = ended.set
    return call


def _code_of(call: Any) -> str:
    """How it ends, which is known once what came is read."""
    with suppress(grpc.RpcError):
        list(call)
    return call.code().name


def test_calls_that_do_not_go_on_hold_no_place(flying: Flying, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are places, without a key and with one."""
    monkeypatch.setattr(rpcs, "UPLOAD_S", 1.0)
    names = ("GetFlightInfo", "GetSchema", "DoGet", "DoAction", "DoPut", "Handshake")
    with ExitStack() as held:
        calls: list[Any] = []
        for number in range(8):  # connections of their own: each carries 16 calls
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = held.enter_context(grpc.insecure_channel(f"127.0.0.1:{flying.flight.port}", options))
            calls += [_open_call(channel, name, KEY if number < 2 else "", b"") for name in names]
            calls += [_open_call(channel, name, KEY if number < 2 else "") for name in names]
            for call in calls:
                held.callback(call.let_go)
        codes = {_code_of(call) for call in calls}  # all end
    assert codes <= {
        "OK",
        "UNAUTHENTICATED",
        "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT",
        "RESOURCE_EXHAUSTED",
        "UNIMPLEMENTED",
    }
    assert {"UNAUTHENTICATED", "DEADLINE_EXCEEDED"} <= codes
    assert flying.sql("SELECT 1 AS one").num_rows == 1


def test_an_address_leaves_places_to_others(flying: Flying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CALLS_OF_ADDRESS", 0)
    with pytest.raises(Exception, match="calls of this address"):
        flying.sql("SELECT 1")


def test_a_message_of_a_million_fields_is_refused_at_once() -> None:
    for message in (b"\x08\x00" * 2**20, pack((1, b"\x01" * 2**20))):
        with pytest.raises(NotMessage, match="more than"):
            numbers(unpack(message)[1])


def test_messages_survive_their_encoding() -> None:
    for value in (0, 1, 127, 128, 2**63, 2**64 - 1):
        assert last(unpack(pack((5, value))), 5, -1) == value
    assert last(unpack(pack((5, -1))), 5, 0) == 2**64 - 1
    statement = FlightStatement("SELECT ?", (1, None, "é", 2.5, True))
    assert statement_of(handle_of(statement)) == statement
    for bad in (b"\x0a\x05abc", b"\x0b", b"\xff" * 11):
        with pytest.raises(NotMessage):
            unpack(bad)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [(None, "ab"), ("%", "ab"), ("a", "a"), ("_b", "b"), ("%" * 50 + "c", ""), ("a%b%", "")],
)
def test_patterns_of_names(pattern: str | None, names: str) -> None:
    there = ["a", "xb"]
    asked = Tables(None, None, pattern, (), with_columns=False)
    assert chosen(asked, there) == [one for one in there if one[-1] in names]


def test_adbc(flying: Flying) -> None:
    dbapi = pytest.importorskip(
        "adbc_driver_flightsql.dbapi", reason="needs adbc-driver-flightsql, adbc-driver-manager"
    )
    bearer = {"adbc.flight.sql.authorization_header": f"Bearer {KEY}"}
    with (
        dbapi.connect(flying.url, db_kwargs=bearer, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT name, age FROM people WHERE age > 35 ORDER BY age")
        assert cursor.fetchall() == [("Bob", 41), ("Cid", 52)]
        cursor.execute("SELECT name FROM people WHERE city = ? AND age > ?", ("Rome", 45))
        assert cursor.fetch_arrow_table().to_pylist() == [{"name": "Cid"}]
        with pytest.raises(dbapi.Error, match="no dataset is named 'nothing'"):
            cursor.execute("SELECT * FROM nothing")
            cursor.fetchall()
        assert connection.adbc_get_info()["vendor_name"] == "Headrace"
        assert connection.adbc_get_table_schema("people").names == ["name", "city", "age"]
        [catalog] = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
        tables = [
            one["table_name"]
            for schema in catalog["catalog_db_schemas"]
            for one in schema["db_schema_tables"]
        ]
        assert tables == ["gone", "people"]
    login = {"username": "anyone", "password": KEY}
    with (
        dbapi.connect(flying.url, db_kwargs=login, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_a_client_that_leaves_ends_its_statement(flying: Flying) -> None:
    """Its place is free long before the statement's own limit, 60 s."""
    endless = FlightStatement("SELECT sum(a.range * b.range % 7) FROM range(10000000000) a, range(100000) b")
    ticket = arrow.flight.Ticket(any_of("TicketStatementQuery", pack((1, handle_of(endless)))))
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    leaving = arrow.flight.FlightCallOptions(timeout=2, headers=headers)
    with pytest.raises(arrow.flight.FlightTimedOutError):
        flying.client.do_get(ticket, leaving).read_all()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            assert flying.sql("SELECT 1 AS x").to_pylist() == [{"x": 1}]
            return
        except arrow.flight.FlightUnavailableError:
            time.sleep(0.05)
    pytest.fail("the statement goes on")


def test_a_port_that_is_taken(flying: Flying) -> None:
    with running_server(FakeModel(), flight_port=flying.flight.port) as running:
        running.thread.join(20)
        assert isinstance(running.server.failure, UsageError)
        assert "--flight-port" in running.server.failure.message
