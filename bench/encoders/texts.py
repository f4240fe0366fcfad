"""Texts of real lengths for the comparison: remarks, sentences, paragraphs.

    python bench/encoders/texts.py DATA > texts.json

DATA is the folder of shared data: half are remarks of CLINC150, the others lines of WikiText-2, up to 180
words.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

import numpy as np

COUNT, LONGEST = 512, 180


def main() -> None:
    """Prints the list, always the same."""
    data = Path(sys.argv[1])
    remarks = json.loads(lzma.decompress((data / "intents/clinc150/data_small.json.xz").read_bytes()))["test"]
    wiki = lzma.decompress((data / "text/wikitext-2/valid.txt.xz").read_bytes()).decode()
    lines = [" ".join(line.split()[:LONGEST]) for line in wiki.split("\n") if len(line.split()) > 20]
    random = np.random.default_rng(0)
    texts = [remarks[at][0] for at in random.permutation(len(remarks))[: COUNT // 2]]
    texts += [lines[at] for at in random.permutation(len(lines))[: COUNT - len(texts)]]
    json.dump([texts[at] for at in random.permutation(COUNT)], sys.stdout)


if __name__ == "__main__":
    main()
