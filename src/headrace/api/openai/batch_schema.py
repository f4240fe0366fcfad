"""The bodies of replies about files and batches."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.inference.batches.batch_files import BatchUsage


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file without its content."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True):
    """A page of files; the next begins after `last_id`."""

    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


class FileDeleted(msgspec.Struct, frozen=True):
    """A file that is gone."""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines of a batch: all, those that have run well, and those with an error."""

    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    in_progress_at: int
    expires_at: int
    cancelling_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    expired_at: int | None
    cancelled_at: int | None
    output_file_id: str | None
    error_file_id: str | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None
    errors: None = None
    failed_at: None = None
    object: Literal["batch"] = "batch"


class BatchList(msgspec.Struct, frozen=True):
    """A page of batches; the next begins after `last_id`."""

    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"
