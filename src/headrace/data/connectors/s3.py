"""Files in S3, or in a server that speaks its protocol. The secret is the secret access key."""

from __future__ import annotations

from urllib.parse import urlsplit

from headrace.data.connectors.file import beginning, format_of, reader
from headrace.data.source import Connector, Opened, Source, literal, quoted
from headrace.errors import UsageError


def s3_secret(opened: Opened, url: str) -> str:
    """The statement that makes the dataset's secret, valid for its folder alone."""
    settings = opened.settings
    parts = [
        f"TYPE s3, PROVIDER config, REGION {literal(settings.region)}",
        f"SCOPE {literal(beginning(url))}",
    ]
    if settings.user is not None and opened.secret is not None:
        parts += [f"KEY_ID {literal(settings.user)}", f"SECRET {literal(opened.secret)}"]
    if settings.endpoint is not None:
        address = urlsplit(settings.endpoint)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise UsageError(f"{opened.where}.endpoint is no address such as http://minio:9000")
        parts += [f"ENDPOINT {literal(address.netloc)}", "URL_STYLE 'path'"]
        parts += [f"USE_SSL {'true' if address.scheme == 'https' else 'false'}"]
    return f"CREATE SECRET {quoted(opened.attached)} ({', '.join(parts)})"


def _connect(opened: Opened) -> Source:
    url = f"s3:{opened.location}"
    found = format_of(opened)
    if not url.startswith("s3://") or found in ("arrow", "excel"):
        raise UsageError(f"{opened.where}.from is no s3://BUCKET/FILE of Parquet, CSV or JSON")
    return Source(
        relation=reader(opened, url, found),
        extensions=("httpfs",),
        statements=(s3_secret(opened, url),),
        folders=(beginning(url),),
    )


CONNECTOR = Connector(_connect, ("httpfs",))
