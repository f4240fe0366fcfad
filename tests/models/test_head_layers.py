"""The layers of heads, with the names of their tensors, against the modules of `transformers`: on states that
are given, so without the encoder below them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from golden import CAPACITY, Chunk, make_step, relative_error, scattered_pages
from headrace.executors.reference import ReferenceExecutor
from headrace.models.decoder_config import DecoderConfig
from headrace.models.heads.find import find_head
from headrace.models.registry import find_model
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.value import Array, Value
from headrace.program.record import record
from headrace.weights.head import Head

TOKENS, HIDDEN, VOCABULARY = 7, 32, 64
LABELS = ("a", "b", "c")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "embedding_size": HIDDEN,
    "pad_token_id": 0,
    "id2label": dict(enumerate(LABELS)),
}
TYPES = ["bert", "roberta", "xlm-roberta", "camembert", "mpnet"]
TYPES += ["electra", "distilbert", "deberta-v2", "modernbert"]
TASKS = {
    "classify": "SequenceClassification",
    "token_classify": "TokenClassification",
    "masked_lm": "MaskedLM",
}
WITHOUT_MASKED_LM = ("electra", "deberta-v2")


def config_like(eps: float) -> DecoderConfig:
    plain = {"model_type": "bert", "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "layer_norm_eps": eps}
    config: Any = find_model(plain | {"num_attention_heads": 2}, pooling="none").config
    return config


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("model_type", TYPES)
def test_layers_equal_transformers(model_type: str, kind: Any) -> None:
    if kind == "masked_lm" and model_type in WITHOUT_MASKED_LM:
        pytest.skip("not supported")
    if kind == "classify" and model_type == "bert":
        pytest.skip("its pooler is in the base model: tests/goldens/heads has it")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model(model_type, **SIZES)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{TASKS[kind]}").from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    states = torch.randn(1, TOKENS, HIDDEN)
    weights = {name: p.detach().numpy() for name, p in model.state_dict().items()}
    base = model.base_model_prefix
    setattr(model, base, constant_states(torch, transformers, states))
    with torch.no_grad():
        logits = model(torch.zeros(1, TOKENS, dtype=torch.long)).logits
    expected = logits.numpy() if kind == "classify" else logits[0].numpy()
    if kind == "masked_lm":
        expected = np.log1p(np.maximum(expected, 0)).max(0, keepdims=True)
    found = rows_of(model_type, Head(kind=kind, labels=LABELS), config, weights, states[0].numpy())
    assert relative_error(found, expected) <= 1e-5


def constant_states(torch: Any, transformers: Any, states: Any) -> Any:
    class Constant(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return transformers.modeling_outputs.BaseModelOutput(states)

    return Constant()


def rows_of(model_type: str, head: Head, config: Any, weights: dict[str, Array], states: Array) -> Array:
    settings = config.to_dict() | {"id2label": None}
    definition = find_head(settings, model_type, HIDDEN, head, "none", ())
    sizes = config_like(getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12)))
    if model_type == "modernbert":
        sizes = replace(sizes, norm_bias=False)

    def define(m: Builder) -> Value:
        return definition.define(m, sizes, embed(m.tokens, m.weight("states", TOKENS, HIDDEN)))

    program = record(define)
    known = weights | {"states": states}
    executor = ReferenceExecutor(program, {name: known[name] for name in program.weights}, CAPACITY)
    step = make_step(Chunk(np.arange(TOKENS, dtype=np.int32), 0, scattered_pages(0)))
    ends = {"cls": [0], "none": list(range(TOKENS))}.get(definition.pooling, [TOKENS - 1])
    return executor.run(replace(step, rows=np.array(ends, np.int32)))
