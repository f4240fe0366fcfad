"""Works out every figure of the encoders' cards from their folders and writes the cards.

    python train/evaluate_encoders.py --model FOLDER --data FOLDER --card embed|tagger

Vectors and entities come from headrace, as a user gets them; the baselines are those of scikit-learn.
"""

import argparse
import sys
from pathlib import Path

from baselines import most_frequent, regression_tagger, seen_before, tfidf_regression, tfidf_vectors
from corpus import MissingData
from data.entities import Entity, Tagged, read_tagged
from data.intents import read_banking
from evaluate import CARDS, PLACE, SEED
from nearness import Encode, centroid_accuracy, nearest_share
from pairs import read_pair_sources, sql_pair
from spans import f1

from headrace import LLM

COUNT = 1000

Rows = list[tuple[str, str, str]]
"""What, the model's figure, the baselines' figures."""


def embed_rows(model: Path, data: Path) -> Rows:
    """Intents by the nearest centroid; answers by the nearest of many."""
    sources = read_pair_sources(data)
    learned, asked = sources.intents["train"], sources.intents["test"]
    tasks = [talk.messages for _, talk in sources.shell.held_out(COUNT, SEED)]
    questions = [sql_pair(question) for question, _ in sources.sql.held_out(COUNT, SEED, split="test")]
    with LLM(model, cache_dir=None) as llm:
        encode_texts: Encode = llm.embed
        rows = [
            (
                f"intents, CLINC150 small test, nearest centroid: right of {len(asked):,}",
                f"{centroid_accuracy(encode_texts, learned, asked):.1%}",
                f"most frequent {most_frequent(learned, asked):.1%}, TF-IDF with logistic regression "
                f"{tfidf_regression(learned, asked):.1%}",
            ),
            *(few_shot_row(llm, data, examples) for examples in (5, 10)),
        ]
        for what, both in (
            (
                "shell tasks in unseen words: own command is the nearest",
                [[str(m[i]["content"]) for m in tasks] for i in (0, 1)],
            ),
            (
                "WikiSQL test questions: own statement is the nearest",
                [[q[i] for q in questions] for i in (0, 1)],
            ),
        ):
            simple = nearest_share(tfidf_vectors(both[0] + both[1]), *both)
            figure = nearest_share(encode_texts, *both)
            rows.append((f"{what} of {COUNT:,}", f"{figure:.1%}", f"TF-IDF {simple:.1%}"))
    return rows


def few_shot_row(llm: LLM, data: Path, examples: int) -> tuple[str, str, str]:
    """Intents of a domain that was never learned, by a classifier from a few examples of each."""
    learned, asked = read_banking(data, examples)
    head = llm.fit_classifier(learned)
    found = head.classify([text for text, _ in asked])
    right = sum(one.label == intent for one, (_, intent) in zip(found, asked, strict=True))
    return (
        f"intents of a domain never seen, Banking77, {examples} examples of each: right of {len(asked):,}",
        f"{right / len(asked):.1%}",
        f"TF-IDF with logistic regression {tfidf_regression(learned, asked):.1%}",
    )


def tagger_rows(model: Path, data: Path) -> Rows:
    """F1 of entities that are equal in place and label."""
    sources = read_tagged(data)
    rows: Rows = []
    names = {
        "wnut": "entities, WNUT17 dev",
        "pii": "personal data, templates of Presidio's that were not seen",
    }
    with LLM(model, cache_dir=None) as llm:
        for kind, what in names.items():
            texts, learned = sources.held_out[kind], sources.learned[kind]
            mine = f1(tag(llm, texts), texts)
            simple = f1(seen_before(learned, texts), texts)
            regression = f1(regression_tagger(learned, texts), texts)
            others = f"seen before {simple:.1%}, TF-IDF with logistic regression by word {regression:.1%}"
            rows.append((f"{what}: F1 over {len(texts):,} texts", f"{mine:.1%}", others))
    return rows


def tag(llm: LLM, texts: list[Tagged]) -> list[list[Entity]]:
    """The entities that it finds, text by text."""
    found = [llm.entities(text.text, text.labels)[0] for text in texts]
    return [[Entity(one.start, one.end, one.label) for one in entities] for entities in found]


def main() -> int:
    """Prints the figures and writes the folder's README.md from the card's text."""
    parser = argparse.ArgumentParser(description="Works out the figures of an encoder's card.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--card", choices=["embed", "tagger"], required=True)
    options = parser.parse_args()
    try:
        rows = (embed_rows if options.card == "embed" else tagger_rows)(options.model, options.data)
    except MissingData as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    lines = ["| | this model | baselines |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    table = "\n".join(lines)
    print(table)
    text = (CARDS / f"{options.card}.md").read_text()
    (options.model / "README.md").write_text(text.replace(PLACE, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
