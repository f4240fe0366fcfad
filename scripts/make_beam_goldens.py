"""Write tests/goldens/beams.json: results of transformers' beam search on one of the golden checkpoints.

Needs torch and transformers (`pip install headrace[train]`); the test that reads the file needs neither.
"""

import itertools
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent.parent / "tests" / "goldens"
CHECKPOINT = "llama3"
PROMPT_TOKENS = 21
NEW_TOKENS = 24


def search(
    model: torch.nn.Module, prompt: list[int], stop_ids: list[int], **settings: object
) -> dict[str, object]:
    """One case: its settings, and the generated tokens and scores of all beams, best first."""
    found = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=stop_ids,
        pad_token_id=0,
        num_return_sequences=settings["num_beams"],
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    sequences = []
    for row in found.sequences[:, len(prompt) :].tolist():
        ends = [place for place, token in enumerate(row) if token in stop_ids]
        sequences.append(row[: ends[0] + 1] if ends else row)
    scores = found.sequences_scores.tolist()
    return {"prompt": prompt, "stop_ids": stop_ids, **settings, "sequences": sequences, "scores": scores}


def main() -> None:
    """Write all cases."""
    model = AutoModelForCausalLM.from_pretrained(
        FOLDER / CHECKPOINT, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(7)
    cases = []
    kinds = itertools.product((2, 3, 5), (0.0, 1.0, 2.0, -1.0), (False, True, "never"))
    for width, penalty, early in kinds:
        prompt = torch.randint(2, 128, (PROMPT_TOKENS,), generator=generator).tolist()
        settings = {"num_beams": width, "length_penalty": penalty, "early_stopping": early}
        unended = search(model, prompt, [1], **settings)["sequences"]
        # Tokens that occur in beams, so that some beams end early.
        stop_ids = sorted({unended[0][len(unended[0]) // 3], unended[-1][-1]})
        cases.append(search(model, prompt, stop_ids, **settings))
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    text = json.dumps(
        {"checkpoint": CHECKPOINT, "max_tokens": NEW_TOKENS, "versions": versions, "cases": cases}
    )
    (FOLDER / "beams.json").write_text(text.replace('{"prompt"', '\n{"prompt"') + "\n")


if __name__ == "__main__":
    main()
