"""`transformers` reads the bundled models' files, and gives the same greedy tokens."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import LLM
from headrace.weights.hub.bundled import list_bundled

TEXTS = (
    "It was a cold evening, and the old house",
    "extract a gzipped tar archive",
    "Table a (b, c)\nHow many b?",
)
# In logits; below this, bfloat16 arithmetic may choose the other of two nearly tied tokens.
TIE = 0.02
PLAIN: dict[str, Any] = {  # without the engine's help, which transformers knows nothing of
    "template_variables": {"in_scope": False, "sql_of_tables": False},
    "max_tokens": 20,
    "temperature": 0,
    "repetition_penalty": 1.0,
}


GENERATES = [
    name for name, folder in sorted(list_bundled().items()) if (folder / "generation_config.json").is_file()
]


@pytest.mark.parametrize("name", GENERATES)
@pytest.mark.parametrize(("executor", "gap"), [("numpy", 0.0), ("native", TIE)])
def test_transformers_gives_the_same_tokens(name: str, executor: str, gap: float) -> None:
    transformers = pytest.importorskip("transformers", reason="needs headrace[train]")
    torch = pytest.importorskip("torch", reason="needs headrace[train]")
    folder = list_bundled()[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with LLM(folder, backend=executor, quantization="keep", cache_dir=None) as llm:
        for text in TEXTS:
            messages = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            ours = list(llm.chat(messages, **PLAIN).tokens)
            with torch.no_grad():
                logits = model(torch.tensor([[*ids, *ours]])).logits[0, len(ids) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(ours)[:, None])[:, 0]
            assert (logits.amax(1) - chosen).max() <= gap
