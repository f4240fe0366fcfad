"""The Helm chart and what it gives, linted and rendered by Helm where it is there; schemas take it."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Struct, field

yaml: Any = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "headrace"
FOLDER = ROOT / "deploy" / "kubernetes"
KEYS = {"apiKeys": {"existingSecret": "k"}}
KUBERNETES = "1.33"


def written_by() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manifests", ROOT / "scripts" / "render_manifests.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MANIFESTS = written_by()
KINDS: list[str] = sorted(MANIFESTS.KINDS)


def helm() -> Any:
    return pytest.importorskip("helm_python", reason="needs Helm as a library: pip install --group deploy")


def parts(kind: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{kind}.yaml").read_text()))


def pods(kind: str) -> Iterator[dict[str, Any]]:
    """The templates of all pods."""
    for one in parts(kind):
        if one["kind"] == "Deployment":
            yield one["spec"]["template"]
        elif one["kind"] == "RayCluster":
            yield one["spec"]["headGroupSpec"]["template"]
            yield from (group["template"] for group in one["spec"]["workerGroupSpecs"])


class Auth(Struct, forbid_unknown_fields=True):
    """Fields of the RayCluster of KubeRay 1.5 that are used here, with their types."""

    mode: str


class Group(Struct, forbid_unknown_fields=True):
    template: dict[str, Any]
    rayStartParams: dict[str, str]


class Workers(Group, forbid_unknown_fields=True, kw_only=True):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int


class RaySpec(Struct, forbid_unknown_fields=True):
    rayVersion: str
    authOptions: Auth
    headGroupSpec: Group
    workerGroupSpecs: list[Workers] = field(default_factory=list[Workers])


@pytest.mark.parametrize("kind", KINDS)
def test_helm_gives_what_is_written(kind: str) -> None:
    helm()
    text = (FOLDER / f"{kind}.yaml").read_text()
    assert text == MANIFESTS.rendered(MANIFESTS.KINDS[kind]), "run scripts/render_manifests.py"


@pytest.mark.parametrize("kind", KINDS)
def test_helm_lints_the_chart(kind: str) -> None:
    report = helm().lint(str(CHART), {**KEYS, **MANIFESTS.KINDS[kind]}, strict=True)
    assert report["errors"] == [] and all(one["severity"] < 2 for one in report["messages"]), report


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "apiKeys.existingSecret is not set"),
        ({**KEYS, "fronts": 2, "ray": {"enabled": True}}, "only front of a Ray cluster"),
        ({**KEYS, "replicas": 9, "ray": {"enabled": True}}, "ray.workers = 2"),
        ({**KEYS, "ray": {"enabled": True, "version": "2.51.0"}}, "needs 2.52.0"),
        ({**KEYS, "minReplicas": 2}, "replicas is 1, with minReplicas 2 and maxReplicas 1"),
        ({**KEYS, "replicas": 3, "maxReplicas": 2}, "replicas is 3, with minReplicas 0 and maxReplicas 2"),
        ({**KEYS, "frnts": 2}, "'frnts' not allowed"),
        ({**KEYS, "extraArgs": ["--ledger", "postgresql://headrace:secret@db/headrace"]}, "extraArgs"),
        ({**KEYS, "replicas": "many"}, "/replicas"),
    ],
)
def test_values_that_cannot_work_are_refused(values: Mapping[str, Any], says: str) -> None:
    library = helm()
    with library.Chart.load(str(CHART)) as chart, pytest.raises(library.HelmError, match=says):
        chart.render(values, name="headrace")


def test_the_values_are_those_of_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema["properties"]) - {"global"}
    assert jsonschema_rs.is_valid(schema, values)
    assert not jsonschema_rs.is_valid(schema, {**values, "frnts": 2})
    assert jsonschema_rs.is_valid(schema, {**values, "extraArgs": ["--api-keys", "--context", "16384"]})
    for secret in ("--api-key=hr-1", "--admin-api-key", "--ledger"):
        assert not jsonschema_rs.is_valid(schema, {**values, "extraArgs": [secret]}), secret


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_takes_them(kind: str) -> None:
    """By the schemas of the API, without unknown fields."""
    checker: Any = pytest.importorskip("kubernetes_validate", reason="needs its schemas: --group deploy")
    for one in parts(kind):
        if one["kind"] != "RayCluster":
            checker.validate(one, KUBERNETES, strict=True)
    for pod in pods(kind):
        checker.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod["spec"]},
            KUBERNETES,
            strict=True,
        )


def test_kuberay_takes_them() -> None:
    (cluster,) = [one for one in parts("ray") if one["kind"] == "RayCluster"]
    found = msgspec.convert(cluster["spec"], RaySpec)
    assert found.authOptions.mode == "token" and found.rayVersion >= "2.52"
    assert [group.replicas for group in found.workerGroupSpecs] == [2]
    folder = os.environ.get("TEST_KUBERAY_CRDS")
    if folder is None:
        return
    definition = yaml.safe_load((Path(folder) / "ray.io_rayclusters.yaml").read_text())
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    assert jsonschema_rs.is_valid(closed(version["schema"]["openAPIV3Schema"]), cluster)


def closed(schema: Any) -> Any:
    """With unknown fields as errors: Kubernetes drops them without a word. And whole numbers as text."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: closed(value) for name, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made and "apiVersion" not in made["properties"]:
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_is_locked_down(kind: str) -> None:
    for pod in pods(kind):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        rights = spec["securityContext"]
        assert rights["runAsNonRoot"] and rights["runAsUser"] and rights["seccompProfile"]["type"]
        volumes = {one["name"] for one in spec["volumes"]}
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] and own["allowPrivilegeEscalation"] is False
            assert own["capabilities"]["drop"] == ["ALL"] and "privileged" not in own
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
            assert container["readinessProbe"] and container["livenessProbe"]
            assert container["lifecycle"]["preStop"]["exec"]["command"]
            mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
            assert {"/tmp", "/home/headrace"} <= set(mounts) and set(mounts.values()) <= volumes


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_time_to_drain(kind: str) -> None:
    for pod in pods(kind):
        (container,) = pod["spec"]["containers"]
        words = " ".join([*container.get("args", []), *container["lifecycle"]["preStop"]["exec"]["command"]])
        given = 30 if "timeout=30" in words else 0
        assert pod["spec"]["terminationGracePeriodSeconds"] > given > 0, words


@pytest.mark.parametrize("kind", KINDS)
def test_parts_find_each_other(kind: str) -> None:
    found = {one["kind"]: one for one in parts(kind)}
    every = [pod["metadata"]["labels"] for pod in pods(kind)]
    selected = found["Service"]["spec"]["selector"].items()
    assert len([labels for labels in every if selected <= labels.items()]) == 1, "the front alone"
    policy = found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items()
    assert all(policy <= labels.items() for labels in every)
    if kind != "server":
        budget = found["PodDisruptionBudget"]["spec"]
        assert budget["maxUnavailable"] == 1
        assert all(budget["selector"]["matchLabels"].items() <= labels.items() for labels in every)
    if kind == "fronts":
        rolling = found["Deployment"]["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxUnavailable": 0, "maxSurge": 1}
    claim = found.get("PersistentVolumeClaim")
    assert (claim is None) == (kind == "fronts"), "several fronts have no file in common"


def test_the_cluster_of_compose_is_locked_down() -> None:
    found = yaml.safe_load((ROOT / "deploy" / "compose.cluster.yml").read_text())
    for service in found["services"].values():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["user"] == "1000:1000"
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
    front = found["services"]["front"]
    assert front["ports"] == ["127.0.0.1:8080:8080"] and front["healthcheck"]["test"][-1].count("/ready")
    assert "ports" not in found["services"]["worker"]
