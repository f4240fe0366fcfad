"""Writes deploy/kubernetes/*.yaml, what the Helm chart gives for three installations. A test compares.

python scripts/render_manifests.py    (needs helm-python-sdk, Helm as a library: pip install --group deploy)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CHART = DEPLOY / "helm" / "headrace"
FOLDER = DEPLOY / "kubernetes"
KEYS = {"apiKeys": {"existingSecret": "headrace-keys"}}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "server": {},
    "fronts": {"fronts": 3, "replicas": 2, "ledger": {"existingSecret": "headrace-ledger"}},
    "ray": {"ray": {"enabled": True}, "replicas": 3, "modelVolume": {"existingClaim": "models"}},
}
BEGINNING = "# Written by scripts/render_manifests.py from deploy/helm/headrace: change that.\n"


def rendered(values: Mapping[str, Any]) -> str:
    """All manifests of a release of the chart, as `helm template` gives them."""
    helm: Any = importlib.import_module("helm_python")
    with helm.Chart.load(str(CHART)) as chart:
        files: dict[str, str] = chart.render({**KEYS, **values}, name="headrace", namespace="default")
    texts = [text.strip() for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return BEGINNING + "".join(f"---\n{text}\n" for text in texts if text)


if __name__ == "__main__":
    for kind, values in KINDS.items():
        (FOLDER / f"{kind}.yaml").write_text(rendered(values))
