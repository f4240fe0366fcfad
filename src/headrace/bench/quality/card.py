"""What a model's card says of how it was made and what that cost."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.loading.model_record import MeasuredForm, ModelRecord

_BEGIN, _END = "<!-- headrace: begin -->", "<!-- headrace: end -->"
_SECTION = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", re.DOTALL)
_MAX_CARD = 16 << 20


def card_file(model: Path) -> Path:
    """README.md of a folder, NAME.gguf.md of a GGUF file."""
    return model / "README.md" if model.is_dir() else model.with_name(f"{model.name}.md")


def write_card(model: Path, name: str, record: ModelRecord) -> None:
    """Put a section at the end of the card, in the place of an older one."""
    file = card_file(model)
    old = ""
    if file.is_file() and file.stat().st_size <= _MAX_CARD:
        old = _SECTION.sub("", file.read_text(encoding="utf-8", errors="replace")).rstrip()
    begin = old or f"# {_plain(name)}"
    file.write_text(f"{begin}\n\n{_section(record)}\n", encoding="utf-8")


def _section(record: ModelRecord) -> str:
    lines = [_BEGIN, "## Made by headrace", ""]
    lines += [f"- {_plain(key)}: {_plain(value)}" for key, value in record.made.items()]
    if record.quality:
        lines += ["", *_table(record.quality)]
    return "\n".join([*lines, _END])


def _table(quality: tuple[MeasuredForm, ...]) -> list[str]:
    lines = [
        "| weights | keys, values | KL mean | median | 99.9 % | top-1 | perplexity | reference's | tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.form.quantization} | {one.form.kv_cache_dtype} | {one.kl.mean:.5f} | {one.kl.median:.5f} |"
        f" {one.kl.p999:.4f} | {one.top1:.2%} | {one.perplexity:.4f} | {one.reference_perplexity:.4f} |"
        f" {one.tokens:,} |"
        for one in quality
    ]
    first = quality[0]
    return [
        *lines,
        "",
        f"KL divergence of the next token from {_plain(first.reference)}, in nats; text:"
        f" {_plain(first.source)}.",
    ]


def _plain(text: str) -> str:
    """Text that ends no comment, cell or line."""
    return re.sub(r"[\x00-\x1f|<>`]+", " ", text).strip()[:300]
