"""Which classes named by a config's `architectures` a model can run as."""

from __future__ import annotations

import re

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, texts

# A class without "For..." or "...Head" is the base model: LlamaModel, BertModel.
_HEAD = re.compile(r"(?:For|LMHead|DoubleHeads|Head)(?=[A-Z]|Model$)\w*$")
_GENERATES = re.compile(r"ForCausalLM$|LMHeadModel$|ForConditionalGeneration$")
_PRETRAINS = re.compile(r"ForMaskedLM$|ForPreTraining$")  # encoders with the head that they were trained with


def check_architecture(config: Config, *, encodes: bool) -> None:
    """Raises UnsupportedModel where `architectures` names a class with the head of another task, such as
    question answering: without its head the model would answer something else. Names are those of
    `transformers`; a name without a head, or none at all, is the base model.
    """
    names = texts(config, "architectures") or ()
    if not names or any(_runs(name, encodes) for name in names):
        return
    wanted = (
        "...Model, ...ForSequenceClassification, ...ForTokenClassification, ...ForMaskedLM or ...ForCausalLM"
        if encodes
        else "...ForCausalLM or ...Model"
    )
    raise UnsupportedModel(
        f"config.json: architectures is {', '.join(names)[:120]!r}, a model with the head of another task,"
        f" which is not supported: use a checkpoint of {wanted}"
    )


def _runs(name: str, encodes: bool) -> bool:
    if _GENERATES.search(name) or _HEAD.search(name) is None:
        return True
    return encodes and _PRETRAINS.search(name) is not None
