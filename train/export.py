"""Writes a trained decoder as a model folder for `transformers` and this package, and reads it back."""

import json
from pathlib import Path

import torch
from decoder import Decoder, Shape
from dialogue import TEMPLATE_PATH
from safetensors.torch import load_file, save_file
from spans import LABEL_MARK, LONGEST_SPAN, TEXT_MARK, WINDOW
from stream import BEGIN, BEGIN_ID, END, END_ID
from tag import Tagger
from tokenizers import Tokenizer

MODULES = {
    "Transformer": "",
    "Pooling": "1_Pooling",
    "Normalize": "2_Normalize",
}  # of a sentence encoder, with folders

# A story continuer has no roles: the messages, concatenated, are the beginning of the text. The answer
# continues where the user's text ends, so nothing separates them, and the prefix cache matches both.
STORY_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- message['content'] -}}
    {%- if message['role'] != 'user' and not loop.last -%}{{- '\\n\\n' -}}{%- endif -%}
{%- endfor -%}
"""


def write_story_model(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes all files except the model card, for open-ended text."""
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.1}
    _write_model(decoder, tokenizer, folder, STORY_TEMPLATE, sampling)


def write_chat_model(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes all files except the model card, for answers: greedy unless the request says otherwise."""
    _write_model(decoder, tokenizer, folder, TEMPLATE_PATH.read_text(), {"do_sample": False})


def write_encoder(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes all files except the model card, for text embeddings: includes the files of
    sentence-transformers, and a config from which `transformers` makes a Llama with bidirectional
    attention.
    """
    _write_states(decoder, tokenizer, folder)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(MODULES.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    (folder / MODULES["Pooling"]).mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": decoder.shape.hidden, "pooling_mode_mean_tokens": True}
    _write(folder / MODULES["Pooling"] / "config.json", pooling)


def write_tagger(tagger: Tagger, tokenizer: Tokenizer, folder: Path) -> None:
    """The same for token states; the scoring head is in a separate file."""
    _write_states(tagger.decoder, tokenizer, folder)
    head = {name: tensor.detach().contiguous() for name, tensor in tagger.named_parameters()}
    head = {name: tensor for name, tensor in head.items() if not name.startswith("decoder.")}
    save_file(head, folder / "head.safetensors", metadata={"format": "pt"})
    (folder / "head.safetensors").chmod(0o644)
    marks = {"label_mark": LABEL_MARK, "text_mark": TEXT_MARK, "longest_span": LONGEST_SPAN, "window": WINDOW}
    _write(folder / "tagger.json", marks)


def _write_states(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_tensors(decoder, tokenizer, folder)
    _write(folder / "config.json", _config(decoder) | {"architectures": ["LlamaModel"], "is_causal": False})
    _write(folder / "tokenizer_config.json", _tokenizer_config(decoder))


def _write_tensors(decoder: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    tensors = {
        f"model.{name}": parameter.detach().to(torch.bfloat16).contiguous()
        for name, parameter in decoder.named_parameters()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # save_file makes it readable only by its owner
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_model(
    decoder: Decoder, tokenizer: Tokenizer, folder: Path, template: str, sampling: dict[str, object]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_tensors(decoder, tokenizer, folder)
    (folder / "chat_template.jinja").write_text(template)
    _write(folder / "config.json", _config(decoder))
    _write(
        folder / "generation_config.json",
        {"bos_token_id": BEGIN_ID, "eos_token_id": END_ID} | sampling,
    )
    _write(folder / "tokenizer_config.json", _tokenizer_config(decoder))


def read_model(folder: Path) -> tuple[Decoder, Tokenizer]:
    """A decoder, in float32, and its tokenizer, from a model folder written by this module."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )
    decoder = Decoder(shape)
    tensors = load_file(folder / "model.safetensors")
    decoder.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    return decoder, Tokenizer.from_file(str(folder / "tokenizer.json"))


def _config(decoder: Decoder) -> dict[str, object]:
    shape = decoder.shape
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": BEGIN_ID,
        "eos_token_id": END_ID,
        "dtype": "bfloat16",
    }


def _tokenizer_config(decoder: Decoder) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": decoder.shape.context,
    }


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
