"""Tables of Apache Iceberg, by the folder of a table with `version-hint.text`, or by a metadata
file; of this machine or S3."""

from __future__ import annotations

from headrace.data.connectors.s3 import s3_secret
from headrace.data.source import Connector, Opened, Source, literal, local_path

EXTENSIONS = ("avro", "iceberg")


def _connect(opened: Opened) -> Source:
    place = opened.location
    remote = place.startswith("s3://")
    if not remote:
        place = local_path(place)
    folder = place.rpartition("/metadata/")[0] if place.endswith(".metadata.json") else place
    return Source(
        relation=f"iceberg_scan({literal(place)})",
        extensions=(*EXTENSIONS, "httpfs") if remote else EXTENSIONS,
        statements=(s3_secret(opened, place),) if remote else (),
        folders=(folder.rstrip("/") + "/",),
    )


CONNECTOR = Connector(_connect, (*EXTENSIONS, "httpfs"), extra="lake")
