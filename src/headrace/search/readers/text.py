"""Plain text, and whatever else is text: code, tables, logs."""

from __future__ import annotations

from headrace.search.readers.reading import DocumentKind, DocumentText, decoded


def _read(data: bytes) -> DocumentText:
    return DocumentText(decoded(data))


READER = DocumentKind(
    (
        *(
            ".txt",
            ".text",
            ".log",
            ".rst",
            ".adoc",
            ".org",
            ".tex",
            ".csv",
            ".tsv",
            ".json",
            ".jsonl",
            ".yaml",
        ),
        *(".yml", ".toml", ".ini", ".cfg", ".xml", ".sql", ".sh", ".py", ".js", ".ts", ".go", ".rs", ".c"),
        *(".h", ".cpp", ".hpp", ".java", ".kt", ".rb", ".php", ".cs", ".swift", ".scala", ".r", ".lua"),
    ),
    _read,
)
