"""A server that speaks Qdrant's HTTP: bodies are read by the models of the official client, and its local
mode does what they say. It stands for Qdrant where no server can be had."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

API_KEY = "k3y of qdrant"


class QdrantServer(ThreadingHTTPServer):
    """On a port of its own. `version` is what it says that it is; `answer` may take the place of what it
    does, for tests of servers that misbehave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.version = "1.16.0"
        self.answer: Callable[[str, str, _Handler], bool] = lambda *_: False
        self.lock, self.active = threading.Lock(), 0
        self.client = QdrantClient(":memory:")

    @property
    def address(self) -> str:
        return f"qdrant://127.0.0.1:{self.server_address[1]}"

    def clear(self) -> None:
        """As it was when it began."""
        with self.lock:
            for one in self.client.get_collections().collections:
                self.client.delete_collection(one.name)
        self.version, self.answer = "1.16.0", lambda *_: False

    def do(self, method: str, path: list[str], body: bytes) -> Any:
        """What a request gives. KeyError for one about what is not there."""
        match method, path:
            case "GET", [""]:
                return {"title": "qdrant - vector search engine", "version": self.version}
            case "GET", ["collections"]:
                return self.client.get_collections()
            case "GET", ["collections", name, "exists"]:
                return {"exists": self.client.collection_exists(name)}
            case "DELETE", ["collections", name]:
                return self.client.delete_collection(name)
            case "PUT", ["collections", name]:
                return self._create(name, body)
        _, name, *rest = path
        if not self.client.collection_exists(name):
            raise KeyError(f"Collection `{name}` doesn't exist!")
        return self._points(method, name, rest, body)

    def _create(self, name: str, body: bytes) -> Any:
        given = _read(models.CreateCollection, body)
        if self.client.collection_exists(name):
            raise FileExistsError(f"Collection `{name}` already exists!")
        return self.client.create_collection(
            name, vectors_config=given.vectors, sparse_vectors_config=given.sparse_vectors
        )

    def _points(self, method: str, name: str, path: list[str], body: bytes) -> Any:
        match method, path:
            case "PUT", ["index"]:
                _read(models.CreateFieldIndex, body)
                return models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)
            case "PUT", ["points"]:
                return self.client.upsert(name, _read(models.PointsList, body).points)
            case "POST", ["points"]:
                given = _read(models.PointRequest, body)
                return self.client.retrieve(
                    name, given.ids, _or(given.with_payload, True), _or(given.with_vector, False)
                )
            case "POST", ["points", "scroll"]:
                given = _read(models.ScrollRequest, body)
                records, following = self.client.scroll(
                    name,
                    scroll_filter=given.filter,
                    limit=given.limit or 10,
                    offset=given.offset,
                    with_payload=_or(given.with_payload, True),
                    with_vectors=_or(given.with_vector, False),
                )
                return models.ScrollResult(points=records, next_page_offset=following)
            case "POST", ["points", "count"]:
                return self.client.count(name, _read(models.CountRequest, body).filter)
            case "POST", ["points", "query"]:
                return self._query(name, _read(models.QueryRequest, body))
            case "POST", ["points", "payload"]:
                given = _read(models.SetPayload, body)
                return self.client.set_payload(name, given.payload, points=given.points or given.filter)
            case "POST", ["points", "delete"]:
                return self.client.delete(name, _read(models.PointsSelector, body))
        raise KeyError(f"{method} /{'/'.join(path)}")

    def _query(self, name: str, given: models.QueryRequest) -> Any:
        query = given.query
        if isinstance(query, models.NearestQuery):
            query = query.nearest
        return self.client.query_points(
            name,
            query=query,
            using=given.using,
            query_filter=given.filter,
            limit=given.limit or 10,
            with_payload=_or(given.with_payload, False),
            with_vectors=_or(given.with_vector, False),
            score_threshold=given.score_threshold,
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # a reply in one piece, at once
    server: QdrantServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        path = urlsplit(self.path).path
        try:
            with self.server.lock, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.server.active += 1
                try:
                    if self.server.answer(self.command, path, self):
                        return
                    self._reply(*self._done(path, body))
                finally:
                    self.server.active -= 1
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _done(self, path: str, body: bytes) -> tuple[int, Any]:
        if path != "/" and self.headers.get("api-key") != API_KEY:
            return 401, {"status": {"error": "Must provide an API key or an Authorization bearer token"}}
        try:
            found = self.server.do(self.command, path.strip("/").split("/"), body)
        except KeyError as error:
            return 404, {"status": {"error": f"Not found: {error.args[0]}"}, "time": 0.0}
        except FileExistsError as error:
            return 409, {"status": {"error": f"Wrong input: {error}"}, "time": 0.0}
        except Exception as error:
            return 400, {"status": {"error": f"{type(error).__name__}: {error}"}, "time": 0.0}
        if path == "/":
            return 200, found
        return 200, {"result": _plain(found), "status": "ok", "time": 0.0}

    def _reply(self, status: int, found: Any) -> None:
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = _handle


def _read(model: Any, body: bytes) -> Any:
    return TypeAdapter(model).validate_json(body)


def _or(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given


def _plain(found: Any) -> Any:
    return TypeAdapter(Any).dump_python(found, mode="json")


@contextmanager
def running_qdrant() -> Iterator[QdrantServer]:
    """A server while a block runs."""
    server = QdrantServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
