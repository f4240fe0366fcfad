"""Whether a drawn prompt is nearly one of the outside set, by shares of character 5-grams."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

LENGTH, NEAR = 5, 0.6
FOLDER = Path(__file__).parents[2] / "bench" / "bundled" / "outside"


class Outside:
    """An index of texts. A text is near to one of them where it shares NEAR of the grams of the longer."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sizes: list[int] = []
        self._owners: defaultdict[str, list[int]] = defaultdict(list)
        for text in texts:
            found = grams(text)
            for gram in found:
                self._owners[gram].append(len(self._sizes))
            self._sizes.append(len(found))

    def is_near(self, text: str) -> bool:
        """Short texts are near to what is the same."""
        found = grams(text)
        shared = Counter(owner for gram in found for owner in self._owners.get(gram, ()))
        return any(count >= NEAR * max(len(found), self._sizes[owner]) for owner, count in shared.items())


def grams(text: str) -> set[str]:
    """Its grams, of small letters, digits and single spaces."""
    plain = " ".join("".join(one if one.isalnum() else " " for one in text.lower()).split())
    return {plain[at : at + LENGTH] for at in range(max(1, len(plain) - LENGTH + 1))}


def outside_set() -> Outside:
    """That of the repository: the prompts of its files, what stands before `=>` and behind `|`."""
    lines = [line for file in sorted(FOLDER.glob("*.txt")) for line in file.read_text().splitlines()]
    return Outside(
        line.partition(" => ")[0].rpartition(" | ")[2] for line in lines if line[:1] not in ("", "#")
    )
