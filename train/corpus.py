"""The training text: public-domain novels read from their archives, cleaned and cut into chapters."""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

PLAIN_ARCHIVE = "novels_plain.tar.xz"
OTHER_ARCHIVE = "novels_1839_1925.tar.xz"

# Held out completely. The author's other two books are in training, so this measures style, not
# memory.
HELD_OUT = "Burnett_Princess_1905.txt"

# The plainer half of the second archive: straightforward stories, which a small model can imitate.
OTHER_NOVELS = (
    "Barclay_Ladies_1917.txt",
    "Barclay_Rosary_1909.txt",
    "Bennet_Babylon_1902.txt",
    "Blackmore_Lorna_1869.txt",
    "Braddon_Audley_1862.txt",
    "Cbronte_Jane_1847.txt",
    "Chesterton_Napoleon_1904.txt",
    "Chesterton_Thursday_1908.txt",
    "Dickens_Expectations_1861.txt",
    "Dickens_Oliver_1839.txt",
    "Doyle_Micah_1889.txt",
    "Gaskell_Wives_1865.txt",
    "Gissing_Warburton_1903.txt",
    "Haggard_She_1887.txt",
    "Haggard_Sheallan_1921.txt",
    "Hardy_Madding_1874.txt",
    "Kipling_Kim_1901.txt",
    "Kipling_Light_1891.txt",
    "Stevenson_Catriona_1893.txt",
    "Trollope_Warden_1855.txt",
    "Wcollins_Legacy_1889.txt",
    "Wcollins_Woman_1860.txt",
)

STRAIGHT = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "—": "-", "–": "-", "\ufeff": "", "_": ""})


class MissingData(Exception):
    """The training text is not at the given path."""


@dataclass(frozen=True, slots=True)
class Novels:
    """Chapters of clean text: `plain` and `other` for training, `held_out` for evaluation."""

    plain: list[str]
    other: list[str]
    held_out: list[str]


def read_novels(data: Path) -> Novels:
    """Reads both archives under `data`. Raises MissingData naming the missing files."""
    plain = read_archive(data / PLAIN_ARCHIVE)
    other = read_archive(data / OTHER_ARCHIVE)
    absent = [name for name in (HELD_OUT,) if name not in plain] + [n for n in OTHER_NOVELS if n not in other]
    if absent:
        raise MissingData(f"the archives under {data} lack {len(absent)} novels: {', '.join(absent)}")
    return Novels(
        plain=[chapter for name in sorted(plain) if name != HELD_OUT for chapter in chapters(plain[name])],
        other=[chapter for name in OTHER_NOVELS for chapter in chapters(other[name])],
        held_out=chapters(plain[HELD_OUT]),
    )


def read_archive(path: Path) -> dict[str, str]:
    """Path inside -> text of every file in a .tar.xz. Raises MissingData."""
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {path.name}")
    with tarfile.open(path, "r:xz") as archive:
        files = [(member, archive.extractfile(member)) for member in archive.getmembers() if member.isfile()]
        return {member.name.removeprefix("./"): file.read().decode("utf-8") for member, file in files if file}


def chapters(text: str) -> list[str]:
    """Splits at three or more blank lines; within a piece, paragraphs are unwrapped to one line each."""
    text = text.translate(STRAIGHT).replace("\r\n", "\n").replace("\t", " ")
    pieces = re.split(r"\n(?:[ ]*\n){3,}", text)
    clean = (_paragraphs(piece) for piece in pieces)
    # Skip title pages, mottoes and tables of contents.
    return [piece for piece in clean if len(piece) >= 1_000]


def _paragraphs(piece: str) -> str:
    lines = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n[ ]*\n", piece))
    return "\n\n".join(line for line in lines if line)
