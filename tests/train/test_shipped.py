"""The files of the shipped models are those that `transformers` reads, with the same greedy tokens."""

from __future__ import annotations

import pytest

from headrace import LLM
from headrace.weights.shipped import list_shipped

TEXTS = (
    "It was a cold evening, and the old house",
    "extract a gzipped tar archive",
    "Table a (b, c)\nHow many b?",
)


@pytest.mark.parametrize("name", sorted(list_shipped()))
def test_transformers_says_the_same(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs headrace[train]")
    torch = pytest.importorskip("torch", reason="needs headrace[train]")
    folder = list_shipped()[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with LLM(folder, cache_dir=None) as llm:
        for text in TEXTS:
            messages = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
            theirs = model.generate(ids, max_new_tokens=20, do_sample=False, repetition_penalty=1.0)
            ours = llm.chat(messages, max_tokens=20, temperature=0, repetition_penalty=1.0)
            assert list(ours.tokens) == theirs[0, ids.shape[1] :].tolist()
