"""Complete model folders for tests (a golden's weights, a small tokenizer), and requests run to their end."""

from __future__ import annotations

import json
import queue
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from golden import FOLDER
from headrace.engine.client import EngineClient
from headrace.engine.request import (
    ChoiceFinished,
    ContinuationsScored,
    Delta,
    EngineEvent,
    EngineRequest,
    PromptLogprobs,
    RequestFailed,
    RequestFinished,
    RequestHandle,
    Selection,
    TokenLogprob,
)

CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def tiny_model(folder: Path, golden: str = "llama3", *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """A model folder with a golden's weights and a byte-level tokenizer whose ids are the first bytes."""
    target = folder / golden
    target.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / golden / name, target / name)
    config = json.loads((target / "config.json").read_text())
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1}
    vocabulary |= {letter: i + 2 for i, letter in enumerate(letters[: config["vocab_size"] - 2])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<s>"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(target / "tokenizer.json"))
    settings: dict[str, object] = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def convertible_model(folder: Path, golden: str = "llama2") -> Path:
    """The same with a tokenizer as GGUF can have it: bytes without a token are nothing."""
    path = tiny_model(folder, golden)
    state = json.loads((path / "tokenizer.json").read_text())
    state["model"]["unk_token"] = None
    (path / "tokenizer.json").write_text(json.dumps(state))
    return path


NOT_FINITE = 7


def not_finite_model(folder: Path, golden: str, part: str) -> Path:
    """One whose keys (`part` "k") or values ("v") of the token NOT_FINITE overflow in the first layer."""
    path = tiny_model(folder, golden)
    tensors = {name: tensor.copy() for name, tensor in load_file(path / "model.safetensors").items()}
    table = tensors["model.embed_tokens.weight"]
    table[:, 3], table[NOT_FINITE] = 0, 0
    table[NOT_FINITE, 3] = 1
    tensors[f"model.layers.0.self_attn.{part}_proj.weight"][:, 3] = np.float32(3e38)
    save_file(tensors, path / "model.safetensors")
    return path


@dataclass(slots=True)
class Outcome:
    """Everything that came back from one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    text: dict[int, str] = field(default_factory=dict[int, str])
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict[int, list[TokenLogprob]])
    ends: dict[int, ChoiceFinished] = field(default_factory=dict[int, ChoiceFinished])
    prompts: list[PromptLogprobs] = field(default_factory=list[PromptLogprobs])
    continuations: tuple[float, ...] = ()
    verdicts: list[Selection] = field(default_factory=list[Selection])
    terminal: list[RequestFinished | RequestFailed] = field(
        default_factory=list[RequestFinished | RequestFailed]
    )

    def add(self, event: EngineEvent) -> None:
        assert not self.terminal, f"{event} after the terminal event"
        match event:
            case PromptLogprobs():
                assert not self.tokens, "scores of the prompt after text"
                self.prompts.append(event)
            case ContinuationsScored():
                self.continuations = event.logprobs
            case Delta(choice, text, tokens, logprobs):
                assert choice not in self.ends, "text after the end of a choice"
                self.tokens.setdefault(choice, []).extend(tokens)
                self.text[choice] = self.text.get(choice, "") + text
                self.logprobs.setdefault(choice, []).extend(logprobs)
            case ChoiceFinished():
                assert event.choice not in self.ends, "a choice ended twice"
                self.ends[event.choice] = event
            case Selection():
                self.verdicts.append(event)
            case RequestFinished() | RequestFailed():
                self.terminal.append(event)

    @property
    def bits(self) -> tuple[object, ...]:
        """What the determinism contract promises."""
        return self.tokens, self.text, self.logprobs, {c: (e.reason, e.stop) for c, e in self.ends.items()}

    @property
    def done(self) -> RequestFinished:
        [event] = self.terminal
        assert isinstance(event, RequestFinished), event
        return event


class Running:
    """A submitted request whose events are collected on demand."""

    def __init__(self, engine: EngineClient, request: EngineRequest) -> None:
        self.outcome = Outcome()
        self._events: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
        self.ticket: RequestHandle = engine.submit(request, self._events.put)

    def next(self) -> None:
        """Wait for the events of one step."""
        for event in self._events.get(timeout=60):
            self.outcome.add(event)

    def finish(self) -> Outcome:
        """Wait for the terminal event."""
        while not self.outcome.terminal:
            self.next()
        return self.outcome
