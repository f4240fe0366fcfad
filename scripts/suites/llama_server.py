"""Runs `headrace serve` with the flags of llama-server, as far as both have them.

    llama_server.py FOLDER HF-CHECKPOINT [flags of llama-server]

FOLDER keeps a GGUF file for each chat template that a case asks for. Ends with a line that the suite's reader
knows where a model or a feature is not to be had.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST = 512  # the context of stories260K
HEADRACE = Path(sys.executable).parent / "headrace"
RENAMED = {
    "--port": "--port",
    "--host": "--host",
    "--api-key": "--api-key",
    "--cors-origins": "--cors-origins",
    "--alias": "--alias",
    "--batch-size": "--max-batch-tokens",
    "--threads": "--threads",
}
SAMPLING = {"--temp": ("temperature", float), "--seed": ("seed", int), "--n-predict": ("max_tokens", int)}
READ_HERE = {"--chat-template", "--chat-template-file", "--ctx-size", "--parallel"}
IGNORED_WITH_VALUE = {
    *("--ubatch-size", "--n-gpu-layers", "-fa", "--hf-repo", "--hf-file", "--model", "--model-url"),
    *("--tags", "-ctk", "-ctv", "--pooling", "--reasoning-format", "--reasoning", "--cache-ram"),
}
IGNORED = {
    *("--offline", "--no-slots", "--slots", "--metrics", "--jinja", "--no-jinja", "--cont-batching"),
    *("--kv-unified", "--swa-full", "--no-ui", "--verbose", "--embedding", "--no-cache-idle-slots"),
    "--context-shift",
}
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
COMMAND_R = (
    "{% for m in messages %}<|START_OF_TURN_TOKEN|><|"
    "{{ {'user': 'USER', 'system': 'SYSTEM', 'assistant': 'CHATBOT'}[m.role] }}_TOKEN|>"
    "{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
BUILT_IN = {"chatml": CHATML, "llama3": LLAMA3, "command-r": COMMAND_R}


def main(folder: Path, checkpoint: Path, arguments: list[str]) -> None:
    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    wanted = given.get("--hf-repo", "") + given.get("--model", "") + given.get("--model-url", "")
    if "stories260K" not in wanted or "infill" in wanted:
        sys.exit(f"model unavailable: {wanted or 'none named'}")
    sampling: dict[str, float] = {}
    command: list[str] = []
    rest = iter(arguments)
    for flag in rest:
        if flag in RENAMED:
            command += [RENAMED[flag], next(rest)]
        elif flag in SAMPLING:
            name, kind = SAMPLING[flag]
            sampling[name] = kind(next(rest))
        elif flag in IGNORED_WITH_VALUE or flag in READ_HERE:
            next(rest)
        elif flag not in IGNORED:
            sys.exit(f"flag unavailable: {flag}")
    if sampling.get("max_tokens") == -1:
        del sampling["max_tokens"]
    slots = int(given.get("--parallel", 4))
    context = int(given.get("--ctx-size", 2048))
    length = context if "--kv-unified" in given else context // slots
    command += ["--max-num-seqs", str(slots), "--max-model-len", str(min(length, LONGEST))]
    command += ["--override-generation-config", json.dumps(sampling), "--any-model-name"]
    model = _model(folder, checkpoint, _template(given))
    os.execv(HEADRACE, ["headrace", "serve", str(model), *command])


def _template(given: dict[str, str]) -> str:
    if "--chat-template-file" in given:
        return Path(given["--chat-template-file"]).read_text()
    named = given.get("--chat-template", "chatml")
    return BUILT_IN.get(named, named)


def _model(folder: Path, checkpoint: Path, template: str) -> Path:
    """stories260K as a GGUF file with that chat template."""
    digest = hashlib.sha256(template.encode()).hexdigest()[:12]
    model = folder / f"stories260K-{digest}.gguf"
    if model.exists():
        return model
    with tempfile.TemporaryDirectory(dir=folder) as made:
        source = Path(made) / "hf"
        shutil.copytree(checkpoint, source)
        (source / "chat_template.jinja").write_text(template)
        written = Path(made) / "model.gguf"
        command = [HEADRACE, "quantize", source, written, "--quantization", "f16"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        written.rename(model)
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
