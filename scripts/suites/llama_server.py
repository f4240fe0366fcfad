"""Runs `headrace serve` with the flags of llama-server, as far as both have them.

    llama_server.py FOLDER SHARED-DATA [flags of llama-server]

FOLDER keeps the models that the cases ask for (stand_ins.py). Ends with a line that the suite's reader
knows where a model or a feature is not to be had.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from stand_ins import HEADRACE, encoder, stories

RENAMED = {
    "--port": "--port",
    "--host": "--host",
    "--api-key": "--api-key",
    "--cors-origins": "--cors-origins",
    "--alias": "--alias",
    "--batch-size": "--max-batch-tokens",
    "--threads": "--threads",
    "--sleep-idle-seconds": "--keep-alive",
}
SWITCHES = {"--no-slots": "--disable-slots", "--verbose": "--show-prompts"}
SAMPLING = {"--temp": ("temperature", float), "--seed": ("seed", int), "--n-predict": ("max_tokens", int)}
READ_HERE = {
    "--chat-template",
    "--chat-template-file",
    "--ctx-size",
    "--parallel",
    "--pooling",
    "--reasoning",
}
IGNORED_WITH_VALUE = {
    *("--ubatch-size", "--n-gpu-layers", "-fa", "--hf-repo", "--hf-file", "--model", "--model-url"),
    *("--tags", "-ctk", "-ctv", "--reasoning-format", "--cache-ram"),
}
IGNORED = {
    *(
        "--offline",
        "--slots",
        "--metrics",
        "--jinja",
        "--no-jinja",
        "--cont-batching",
        "--kv-unified",
        "--swa-full",
    ),
    *("--no-ui", "--embedding", "--reranking", "--no-cache-idle-slots"),
    "--context-shift",
}
CHATML = (
    "{{ bos_token }}{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
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


def main(folder: Path, data: Path, arguments: list[str]) -> None:
    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    sampling: dict[str, float] = {}
    command: list[str] = []
    rest = iter(arguments)
    for flag in rest:
        if flag in RENAMED:
            command += [RENAMED[flag], next(rest)]
        elif flag in SAMPLING:
            name, kind = SAMPLING[flag]
            sampling[name] = kind(next(rest))
        elif flag in SWITCHES:
            command.append(SWITCHES[flag])
        elif flag in IGNORED_WITH_VALUE or flag in READ_HERE:
            next(rest)
        elif flag not in IGNORED:
            sys.exit(f"flag unavailable: {flag}")
    if sampling.get("max_tokens") == -1:
        del sampling["max_tokens"]
    if "--metrics" not in given:
        command.append("--disable-metrics")
    slots = int(given.get("--parallel", 4))
    context = int(given.get("--ctx-size", 2048))
    length = context if "--kv-unified" in given else context // slots
    command += ["--max-num-seqs", str(slots), "--tool-format", "hermes"]
    command += ["--override-generation-config", json.dumps(sampling), "--any-model-name"]
    if given.get("--pooling") == "none":
        command += ["--pooling", "none"]
    if "--reasoning" in given:
        variables = {"enable_thinking": given["--reasoning"] != "off"}
        command += ["--default-chat-template-kwargs", json.dumps(variables)]
    model = _model(folder, data, given)
    if model.suffix == ".gguf":
        command += ["--max-model-len", str(length)]
    os.execv(HEADRACE, ["headrace", "serve", str(model), *command])


def _model(folder: Path, data: Path, given: dict[str, str]) -> Path:
    wanted = "".join(given.get(flag, "") for flag in ("--hf-repo", "--model", "--model-url", "--hf-file"))
    if "stories260K" in wanted or (not wanted and "--cors-origins" in given):
        # Without a model llama-server is a router; the cases about origins ask it for no answer.
        return stories(folder, data, _template(given), infill="infill" in wanted)
    if "jina-reranker" in wanted:
        return Path("embed")  # the embedder of the package: its cosines rank documents
    if "bert-bge-small" in wanted:
        return encoder(folder, data, given.get("--pooling", "cls"))
    if not wanted:
        sys.exit("no model: router mode")
    sys.exit(f"model unavailable: {wanted}")


def _template(given: dict[str, str]) -> str:
    if "--chat-template-file" in given:
        return Path(given["--chat-template-file"]).read_text()
    named = given.get("--chat-template", "chatml")
    return BUILT_IN.get(named, named)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
