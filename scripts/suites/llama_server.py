"""Runs `headrace serve` with the flags of llama-server, as far as both have them.

    llama_server.py MODEL [flags of llama-server]

Ends with a line that the suite's reader knows where a model or a feature is not to be had.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RENAMED = {
    "--port": "--port",
    "--host": "--host",
    "--ctx-size": "--max-model-len",
    "--parallel": "--max-num-seqs",
    "--api-key": "--api-key",
    "--cors-origins": "--cors-origins",
}
IGNORED_WITH_VALUE = {
    *("--temp", "--seed", "--batch-size", "--ubatch-size", "--threads", "--n-gpu-layers", "-fa"),
    *("--hf-repo", "--hf-file", "--model", "--model-url", "--alias", "--tags", "--n-predict"),
    *("-ctk", "-ctv", "--pooling", "--reasoning-format", "--reasoning", "--chat-template"),
    *("--chat-template-file", "--cache-ram", "--slot-save-path", "--sleep-idle-seconds"),
}
IGNORED = {
    *("--offline", "--no-slots", "--slots", "--metrics", "--jinja", "--no-jinja", "--cont-batching"),
    *("--kv-unified", "--swa-full", "--no-ui", "--verbose", "--embedding", "--no-cache-idle-slots"),
    "--context-shift",
}


def main(model: str, arguments: list[str]) -> None:
    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    wanted = given.get("--hf-repo", "") + given.get("--model", "") + given.get("--model-url", "")
    if "stories260K" not in wanted or "infill" in wanted:
        sys.exit(f"model unavailable: {wanted or 'none named'}")
    command = ["headrace", "serve", model]
    rest = iter(arguments)
    for flag in rest:
        if flag in RENAMED:
            command += [RENAMED[flag], next(rest)]
        elif flag in IGNORED_WITH_VALUE:
            next(rest)
        elif flag not in IGNORED:
            sys.exit(f"flag unavailable: {flag}")
    os.execv(Path(sys.executable).parent / "headrace", command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
