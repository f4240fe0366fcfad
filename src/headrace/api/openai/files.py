"""/v1/files: what is uploaded for batches and what batches have written; every key sees its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Literal
from urllib.parse import quote

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.multipart import FormField, parse_form
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.http.request_body import read_body
from headrace.api.openai.batch_schema import FileDeleted, FileList, FileObject
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.storage.files import PART_BYTES, Files, StoredFile

PURPOSES = ("batch", "user_data", "assistants", "evals", "fine-tune", "vision")
"""OpenAI's. What is uploaded for anything but a batch is kept, and nothing here reads it."""
MAX_FILENAME = 255
MAX_STORED_BYTES = 4 * 2**30  # of all files of one key
EXPIRES_AFTER_S = (3600, 30 * 86_400)
MAX_PAGE = 10_000

UPLOAD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "At most 32 MiB with the whole form."},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": EXPIRES_AFTER_S[0],
            "maximum": EXPIRES_AFTER_S[1],
        },
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}


class FilesQuery(Query, frozen=True):
    """The query of a list of files."""

    after: str | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = MAX_PAGE
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


def file_object(file: StoredFile) -> FileObject:
    """A file as the API shows it."""
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=file.created_s,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=file.expires_s,
    )


def file_not_found(file_id: str, param: str | None = None) -> NotFound:
    """The error for a file that is not there, or not the caller's."""
    return NotFound(
        f"there is no file {file_id[:80]!r}: it was deleted, has expired or never was", param=param
    )


@Endpoint("POST", "/v1/files", form=UPLOAD, reply=FileObject)
async def upload_file(http: HttpRequest) -> Response:
    """Keep a file, for a batch for instance."""
    service, owner = get_service(http), call_of(http).account.owner
    body = await read_body(http)

    def keep() -> StoredFile:
        form = parse_form(http.headers.get("content-type", ""), body)
        file, purpose, expires_after_s = _upload(form)
        files = Files(service.shared)
        files.forget_expired()
        kept = files.total_bytes(owner())
        if kept + len(file.content) > MAX_STORED_BYTES:
            raise InvalidRequest(
                f"{kept:,} bytes of files are kept for this key, at most {MAX_STORED_BYTES:,} may be: "
                "delete some first",
                param="file",
                code="storage_limit_exceeded",
            )
        content = file.content
        parts = (content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES))
        return files.add(owner(), file.filename or "upload", purpose, parts, expires_after_s=expires_after_s)

    return json_response(file_object(await service.run_in_thread(keep)))


def _upload(form: dict[str, FormField]) -> tuple[FormField, str, int | None]:
    """The file, its purpose and how long it is kept."""
    known = UPLOAD["properties"]
    unknown = sorted(set(form) - set(known))
    if unknown:
        raise InvalidRequest(
            f"the form has the unknown field {unknown[0][:80]!r}; known: {', '.join(known)}",
            param=unknown[0][:80],
            code="unknown_parameter",
        )
    file, purpose = form.get("file"), _text(form, "purpose")
    if file is None or file.filename is None:
        raise InvalidRequest("file is missing, or was sent without a filename", param="file")
    if len(file.filename) > MAX_FILENAME:
        raise InvalidRequest(
            f"the name of the file has {len(file.filename):,} characters, at most {MAX_FILENAME} may be",
            param="file",
        )
    if not file.content:
        raise InvalidRequest("the file is empty", param="file")
    if purpose not in PURPOSES:
        raise InvalidRequest(
            f"purpose is {purpose!r:.60}, it must be one of {', '.join(PURPOSES)}", param="purpose"
        )
    return file, purpose, _expires_after_s(form)


def _expires_after_s(form: dict[str, FormField]) -> int | None:
    anchor, seconds = _text(form, "expires_after[anchor]"), _text(form, "expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    low, high = EXPIRES_AFTER_S
    number = (
        int(seconds) if seconds and seconds.isascii() and seconds.isdecimal() and len(seconds) < 10 else 0
    )
    if anchor != "created_at" or not low <= number <= high:
        raise InvalidRequest(
            f"expires_after needs anchor created_at and seconds from {low:,} to {high:,}",
            param="expires_after",
        )
    return number


def _text(form: dict[str, FormField], name: str) -> str | None:
    field = form.get(name)
    return None if field is None else field.content.decode("utf-8", "replace")


@Endpoint(
    "GET",
    "/v1/files",
    reply=FileList,
    query=FilesQuery,
)
async def list_files(http: HttpRequest) -> Response:
    """The caller's files, newest first unless `order` says otherwise."""
    service, owner = get_service(http), call_of(http).account.owner
    query = read_query(FilesQuery, http)

    def read() -> list[StoredFile]:
        if not service.shared.exists:
            return []
        files = Files(service.shared)
        return files.page(
            owner(),
            purpose=query.purpose,
            after=query.after,
            limit=query.limit + 1,
            newest_first=query.order == "desc",
        )

    found = [file_object(file) for file in await service.run_in_thread(read)]
    page = found[: query.limit]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return json_response(FileList(page, len(found) > query.limit, first, last))


async def _find(http: HttpRequest, file_id: str) -> StoredFile:
    service, owner = get_service(http), call_of(http).account.owner

    def read() -> StoredFile | None:
        return Files(service.shared).get(owner(), file_id) if service.shared.exists else None

    file = await service.run_in_thread(read)
    if file is None:
        raise file_not_found(file_id)
    return file


@Endpoint("GET", "/v1/files/{file_id}", reply=FileObject)
async def get_file(http: HttpRequest, file_id: str) -> Response:
    """One of the caller's files."""
    return json_response(file_object(await _find(http, file_id)))


@Endpoint(
    "GET",
    "/v1/files/{file_id}/content",
    content=(Content("application/octet-stream", {"type": "string", "format": "binary"}),),
)
async def get_file_content(http: HttpRequest, file_id: str) -> Response:
    """What is in one of the caller's files."""
    service, file = get_service(http), await _find(http, file_id)
    headers = {
        "content-length": str(file.bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
    }
    return StreamingResponse(_content(service, file), headers=headers, media_type="application/octet-stream")


async def _content(service: Service, file: StoredFile) -> AsyncGenerator[bytes]:
    parts: Iterator[bytes] = Files(service.shared).parts(file.id)
    while part := await service.run_in_thread(lambda: next(parts, b"")):
        yield part


@Endpoint("DELETE", "/v1/files/{file_id}", reply=FileDeleted)
async def delete_file(http: HttpRequest, file_id: str) -> Response:
    """Remove one of the caller's files. A batch made from it goes on: it has its lines already."""
    service, owner = get_service(http), call_of(http).account.owner
    await _find(http, file_id)
    await service.run_in_thread(lambda: Files(service.shared).delete(owner(), file_id))
    return json_response(FileDeleted(file_id))
