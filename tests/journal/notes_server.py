"""A server of MCP whose one tool changes something. It writes a line for each call that was made: run as
`notes_server.py --file=FILE [--seconds=N]`, where N is what a call takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TEXT = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMA = {
    "type": "object",
    "properties": {"text": TEXT},
    "required": ["text"],
    "additionalProperties": False,
}


def with_notes(folder: Path, *words: str) -> dict[str, str]:
    """The environment of a server that has this one, which is approved. Its file is `notes` in the folder."""
    command = [sys.executable, str(Path(__file__).resolve()), f"--file={folder / 'notes'}", *words]
    settings = json.dumps({"notes": {"command": command, "allow": "*"}})
    environment = {"HEADRACE_MCP": settings, "HEADRACE_MCP_LOCK": str(folder / "mcp.lock")}
    approve = [sys.executable, "-m", "headrace", "mcp", "approve", "notes", "--yes"]
    subprocess.run(approve, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    return environment


def answer(request: dict[str, Any], file: int) -> dict[str, Any]:
    method, params = request["method"], request.get("params") or {}
    if method == "initialize":
        version = params.get("protocolVersion", "2025-11-25")
        facts = {"name": "notes", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": facts}
    if method == "tools/list":
        return {"tools": [{"name": "note", "description": "Keeps a note.", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        os.write(file, json.dumps((params.get("_meta") or {}).get("idempotencyKey")).encode() + b"\n")
        time.sleep(next((float(one[10:]) for one in sys.argv if one.startswith("--seconds=")), 0.0))
        return {"content": [{"type": "text", "text": "It is kept."}]}
    return {}


def main() -> None:
    file = os.open(sys.argv[1].removeprefix("--file="), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request, file)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
