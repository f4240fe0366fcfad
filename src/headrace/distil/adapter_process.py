"""The process of a fine-tuning job.

Run as `python -m headrace.distil.adapter_process` with an AdapterOrder as JSON on standard input, it prints
AdapterNotes, a line each. Ended at any moment it goes on from its last checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from headrace.adapt.fine_tuning.order import AdapterNote, AdapterOrder
from headrace.chat.templates.chat_template import missing_template
from headrace.config.extras import extra_module
from headrace.distil.chat_examples import samples_of
from headrace.distil.samples import Sample
from headrace.errors import HeadraceError, InvalidRequest
from headrace.isolation.limits import ProcessLimits, apply
from headrace.isolation.parent import end_with_reader
from headrace.loading.text_assets import load_text_assets
from headrace.models.registry import find_model
from headrace.weights.checkpoint import open_checkpoint

NICE = 19
MAX_MESSAGE = 2000
NO_BOUND = 1 << 48
"""Of memory: what a training takes follows from its base, which the server's owner chose."""


def main() -> None:
    """In the process."""
    os.nice(NICE)
    end_with_reader()
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=AdapterOrder)
    apply(ProcessLimits(order.hours * 3600, NO_BOUND))
    try:
        samples, held, said = _data(order)  # before the libraries, which take seconds
        if order.whole:
            module = extra_module("train", "headrace.distil.learning.whole", "torch", "transformers")
            _say(module.train_whole(order, samples, said, _say))
        else:
            module = extra_module(
                "train", "headrace.distil.learning.adapters", "torch", "transformers", "peft"
            )
            _say(module.train_adapter(order, samples, held, _say))
    except HeadraceError as error:
        param = error.param if isinstance(error, InvalidRequest) else None
        _say(AdapterNote(kind="failed", message=error.message[:MAX_MESSAGE], param=param))
    except MemoryError:
        _say(AdapterNote(kind="failed", message="there is not enough memory: give a smaller batch_size"))


def _data(order: AdapterOrder) -> tuple[list[Sample], list[Sample], list[Sample]]:
    """To learn from, to test with, and those of the first that the teacher has said."""
    base = Path(order.base)
    tokenizer, template = load_text_assets(base, None)
    if template is None:
        raise missing_template(base.name)
    with open_checkpoint(base) as checkpoint:
        context = find_model(checkpoint.config).config.context
    found: list[list[Sample]] = []
    files = (order.training, "training_file"), (order.validation, "validation_file"), (order.said, "said")
    for file, param in files:
        if file is None:
            found.append([])
            continue
        try:
            text = Path(file).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the file is no UTF-8: {error}", param=param) from None
        found.append(samples_of(text, tokenizer, template, context, param, skips_unfit=order.skips_unfit))
    return found[0], found[1], found[2]


def _say(note: AdapterNote) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(note) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
