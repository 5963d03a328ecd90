"""The stand-in for the kubernetes plugin: the real Pulumi CLI against a real API server."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rehearsal.kubernetes.errors import ApiServerError, KubernetesError
from rehearsal.kubernetes.plane import kubeconfig
from rehearsal.kubernetes.plane.api import Object, documents
from rehearsal.kubernetes.plane.programs import QUEUE, folder
from rehearsal.providers.kubernetes import difference
from rehearsal.providers.plugin.values import UNKNOWN
from tests.limits import HANG_S
from tests.rehearsal.kubernetes.lab import MACHINE, Lab, inside
from tests.rehearsal.kubernetes.stack import TYPED, Stack, made

pytestmark = pytest.mark.slow
INSIDE: ThreadPoolExecutor = inside()


@pytest.fixture(scope="module", name="cluster")
def _cluster(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = INSIDE.submit(Lab, tmp_path_factory.mktemp("plain"), ()).result()
    yield lab
    INSIDE.submit(lab.close).result()


@pytest.fixture(name="stack")
def _stack(cluster: Lab, tmp_path: Path) -> Stack:
    return made(tmp_path, cluster.control_plane.kubeconfig)


def config_map(name: str, **more: Any) -> Object:
    meta = {"name": name, "namespace": "default", **more.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **more}


def deployment(name: str, command: Sequence[str], **more: Any) -> Object:
    labels = {"app": name}
    pod = {"containers": [{"name": "it", "image": MACHINE, "command": list(command)}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {**spec, **more.pop("spec", {})},
            "metadata": {"name": name, "namespace": "default"}, **more}  # fmt: skip


def held(lab: Lab, name: str) -> Object | None:
    return lab.api.get("v1", "ConfigMap", name, "default")


def test_a_programs_life(cluster: Lab, stack: Stack) -> None:
    api = cluster.api
    stack.write({}, TYPED)
    stack.pulumi("preview")
    assert api.get("v1", "Namespace", "life") is None
    stack.up()
    assert api.get("example.com/v1", "Wall", "wall")["spec"] == {"height": 3}  # type: ignore[index]
    schema = api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "walls.example.com")
    assert schema is not None
    assert "x-kubernetes-preserve-unknown-fields" in json.dumps(schema)
    state = stack.pulumi("stack", "export")
    assert "b3BlbiBzZXNhbWU" not in state
    assert "open sesame" not in state
    assert "client-key" not in state

    def versions() -> dict[str, str]:
        kinds = (("v1", "ConfigMap"), ("v1", "Secret"), ("example.com/v1", "Wall"), ("v1", "Namespace"))
        listed = [resource["metadata"] for kind in kinds for resource in api.list(*kind)]
        return {resource["uid"]: resource["resourceVersion"] for resource in listed}

    before = versions()
    stack.up("--expect-no-changes")
    stack.pulumi("refresh", "--yes", "--skip-preview")
    stack.up("--expect-no-changes")
    assert versions() == before

    sleeper = ("apps/v1", "Deployment", "sleeper", "life")
    assert api.get(*sleeper)["status"]["readyReplicas"] == 1  # type: ignore[index]
    stack.pulumi("config", "set", "replicas", "2")
    assert "~ 1 to update" in stack.pulumi("preview", "--diff")
    stack.up()
    live = api.get(*sleeper)
    assert live is not None
    assert live["status"]["readyReplicas"] == 2, "it was waited for"
    (owner,) = [
        resource for resource in live["metadata"]["managedFields"] if resource["operation"] == "Apply"
    ]
    assert re.fullmatch("pulumi-kubernetes-[0-9a-f]{8}", owner["manager"])
    assert versions() == before, "nothing else was touched"

    stack.pulumi("config", "set", "settings", "other")
    assert "1 replaced" in stack.up()
    names = {resource["metadata"]["name"] for resource in api.list("v1", "ConfigMap", "life")}
    assert names == {"named", "other", "kube-root-ca.crt"}
    stack.destroy()
    assert api.get("v1", "Namespace", "life") is None
    assert api.get("rbac.authorization.k8s.io/v1", "ClusterRole", "life-reader") is None
    assert api.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "walls.example.com") is None


def test_drift_is_found_and_a_field_of_another_owner_is_a_conflict(cluster: Lab, stack: Stack) -> None:
    stack.write({"map": config_map("drifting", metadata={"labels": {"colour": "blue"}}, data={"a": "b"})})
    stack.up()
    cluster.api.apply(config_map("drifting", metadata={"labels": {"colour": "red"}}), "somebody")
    assert "1 updated" in stack.pulumi("refresh", "--yes", "--skip-preview")
    assert 'colour: "red" => "blue"' in stack.pulumi("preview", "--diff")
    printed = stack.up(fine=False)
    assert 'conflict with "somebody"' in printed
    assert ".metadata.labels.colour" in printed
    assert "somebody else owns what this would change: take it out of the program" in printed
    assert held(cluster, "drifting")["metadata"]["labels"] == {"colour": "red"}  # type: ignore[index]
    cluster.api.delete(cluster.api.place("v1", "ConfigMap", "default", "drifting"))
    assert "1 deleted" in stack.pulumi("refresh", "--yes", "--skip-preview")
    stack.destroy()


def test_what_is_there_already_is_an_error(cluster: Lab, stack: Stack) -> None:
    cluster.api.apply(config_map("there", data={"a": "b"}), "somebody")
    stack.write({"map": config_map("there", data={"a": "b", "c": "d"})})
    printed = stack.up(fine=False)
    assert 'ConfigMap default/there wasn\'t created: 409 AlreadyExists: configmaps "there"' in printed
    assert "`pulumi import`" in printed
    stack.destroy()
    assert held(cluster, "there")["data"] == {"a": "b"}  # type: ignore[index]


def test_an_import_takes_what_is_there_into_the_state(cluster: Lab, stack: Stack) -> None:
    resource = config_map("imported", metadata={"labels": {"colour": "blue"}}, data={"a": "b"})
    cluster.api.apply(resource, "somebody")
    stack.write({})
    stack.up()
    urn = "urn:pulumi:dev::demo::pulumi:providers:kubernetes::cluster"
    kind = "kubernetes:core/v1:ConfigMap"
    more = (
        "--provider",
        f"cluster={urn}",
        "--yes",
        "--skip-preview",
        "--generate-code=false",
        "--protect=false",
    )
    stack.pulumi("import", kind, "map", "default/imported", *more)
    stack.write({"map": resource})
    stack.up("--expect-no-changes")
    stack.destroy()
    assert held(cluster, "imported") is None


def test_deletion_waits_for_finalizers_and_names_them(cluster: Lab, stack: Stack) -> None:
    resource = config_map("held", metadata={"finalizers": ["example.com/hold"]})
    stack.write({"map": {**resource, "timeouts": {"delete": "8s"}}})
    stack.up()
    printed = stack.destroy(fine=False)
    assert "still there after its deletion: its finalizers may hold it: example.com/hold" in printed
    done: list[float] = []

    def remove() -> None:
        time.sleep(4)
        path = cluster.api.place("v1", "ConfigMap", "default", "held")
        cluster.api.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        done.append(time.monotonic())

    stack.write({"map": resource})
    thread = threading.Thread(target=remove)
    thread.start()
    stack.destroy()
    assert done
    assert done[0] < time.monotonic()
    thread.join()
    assert held(cluster, "held") is None


def test_a_cluster_that_is_not_there_yet_can_be_planned_for(cluster: Lab, stack: Stack) -> None:
    stack.write({"map": config_map("planned")})
    assert "+ 3 to create" in stack.pulumi("preview", LATER="yes")
    nowhere = re.sub(r"https://[\d.:]+", "https://127.0.0.1:9", stack.settings["kubeconfig"])
    stack.settings["kubeconfig"] = nowhere
    stack.write({"map": config_map("planned")})
    assert "+ 3 to create" in stack.pulumi("preview")
    assert "configured Kubernetes cluster is unreachable: 503 Unreachable" in stack.up(fine=False)
    assert held(cluster, "planned") is None


def test_another_cluster_gets_everything_anew(cluster: Lab, stack: Stack) -> None:
    stack.write({"map": config_map("moving")})
    stack.up()
    moved = re.sub(r"https://[\d.]+", "https://127.0.0.1", stack.settings["kubeconfig"])
    stack.settings["kubeconfig"] = moved
    stack.write({"map": config_map("moving")})
    assert "+-2 to replace" in stack.pulumi("preview")
    stack.settings["cluster_identifier"] = "one"
    stack.write({"map": config_map("moving")})
    assert "replace" not in stack.pulumi("preview")
    stack.destroy()


def test_a_rollout_is_waited_for_while_the_api_server_restarts(cluster: Lab, stack: Stack) -> None:
    stack.write({"slow": deployment("slow", ["sleep", "1000"], spec={"minReadySeconds": 8})})
    with (stack.folder / "log").open("w+") as log:
        line = stack.line("up", "--yes", "--skip-preview")
        process = subprocess.Popen(line, cwd=stack.folder, env=stack.environment, stdout=log, stderr=log)
        cluster.until(lambda: cluster.api.get("apps/v1", "Deployment", "slow", "default"), "it")
        cluster.control_plane.restart("kube-apiserver")
        assert process.wait(HANG_S) == 0, (stack.folder / "log").read_text()
    live = cluster.api.get("apps/v1", "Deployment", "slow", "default")
    assert live is not None
    assert live["status"]["availableReplicas"] == 1
    stack.destroy()


def test_a_rollout_that_hangs_names_its_pods(cluster: Lab, stack: Stack) -> None:
    broken = deployment("broken", ["sleep", "1000"])
    broken["spec"]["template"]["spec"]["nodeSelector"] = {"colour": "blue"}
    stack.write({"broken": {**broken, "timeouts": {"create": "5s"}}})
    printed = stack.up(fine=False)
    assert "Deployment default/broken was created, but timed out waiting to be ready" in printed
    assert "0 of 1 replicas are updated and available" in printed
    assert re.search(r"\[Pod broken-\w+-\w+\]: 0/3 nodes are available", printed)
    assert "broken" in stack.pulumi("stack", "export"), "it is in the state"
    stack.write({"broken": deployment("broken", ["sleep", "1000"])})
    assert "1 updated" in stack.up()
    stack.destroy()


def test_what_the_stand_in_does_not_know_is_refused(stack: Stack) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
    stack.write({"pod": pod})
    assert "doesn't know when a Pod is ready" in stack.pulumi("preview", fine=False)
    stack.write({"map": config_map("n/m", metadata={"annotations": {"pulumi.com/patchForce": "true"}})})
    printed = stack.pulumi("preview", fine=False)
    assert "the stand-in doesn't know the annotation pulumi.com/patchForce" in printed
    assert "metadata.name is 'n/m'" in printed
    unnamed = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default"}}
    stack.write({"map": unnamed})
    assert "metadata.name isn't given" in stack.pulumi("preview", fine=False)
    stack.settings |= {"enable_server_side_apply": False, "upsert_existing_objects": True}
    stack.write({})
    printed = stack.pulumi("preview", fine=False)
    assert "the provider setting 'enableServerSideApply: false'" in printed
    assert "the provider setting 'upsertExistingObjects'" in printed


def test_credentials_of_a_program(cluster: Lab, stack: Stack, tmp_path: Path) -> None:
    api = cluster.api
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "deployer", "namespace": "default"},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "deployer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": "default"}],
    }  # fmt: skip
    api.apply_all([account, binding], "tests")
    place = api.place("v1", "ServiceAccount", "default", "deployer") + "/token"
    token = api.request("POST", place, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    calls, program, answer = tmp_path / "calls", tmp_path / "credentials", tmp_path / "answer"
    program.write_text(f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >> {calls}\ncat {answer}\n')
    program.chmod(0o755)
    config = kubeconfig.load(str(cluster.control_plane.kubeconfig))
    config["users"][0]["user"] = {"exec": {
        "apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(program),
        "provideClusterInfo": True, "interactiveMode": "IfAvailable", "installHint": "build it",
    }}  # fmt: skip

    def give(value: str, seconds: float) -> None:
        until = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"token": value, "expirationTimestamp": until}
        answer.write_text(json.dumps({"kind": "ExecCredential", "status": status}))

    def called() -> int:
        return len(calls.read_text().splitlines())

    connection = kubeconfig.connect(kubeconfig.choose(config))
    give("wrong", 3600)
    with pytest.raises(ApiServerError, match="401"):
        connection.request("GET", "/api")
    give(token, 3600)
    connection.request("GET", "/api")
    connection.request("GET", "/api")
    assert called() == 2, "one that was refused isn't used again, one that was taken is"
    given = json.loads(calls.read_text().splitlines()[0])["spec"]["cluster"]
    assert given["server"] == cluster.control_plane.url
    connection = kubeconfig.connect(kubeconfig.choose(config))
    give(token, -1)
    connection.request("GET", "/api")
    connection.request("GET", "/api")
    assert called() == 4, "one that expired isn't used again"
    give(token, 3600)
    stack.settings["kubeconfig"] = json.dumps(config)
    stack.write({"map": config_map("by-token")})
    stack.up()
    assert held(cluster, "by-token")
    stack.destroy()
    program.write_text("#!/bin/sh\necho log in first >&2; exit 1\n")
    with pytest.raises(KubernetesError, match="failed with exit code 1: log in first"):
        kubeconfig.connect(kubeconfig.choose(config)).request("GET", "/api")
    program.unlink()
    with pytest.raises(KubernetesError) as error:
        kubeconfig.connect(kubeconfig.choose(config)).request("GET", "/api")
    assert error.value.fix == "build it"


def test_what_differs_and_what_is_replaced() -> None:
    def listed(old: Object, new: Object) -> dict[str, str]:
        named = difference.differences(difference.pruned(old, old), difference.normalized(new))
        return {resource.path: resource.kind + " replaces" * resource.replaces for resource in named}

    old = deployment("one", ["sleep"], spec={"replicas": 1})
    pod = old["spec"]["template"]["spec"]
    pod["containers"][0]["resources"] = {"limits": {"cpu": "500m", "memory": "1Gi"}}
    new = json.loads(json.dumps(old))
    limits = new["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"cpu": 0.5, "memory": str(2**30)}
    new["spec"]["template"]["spec"] |= {"volumes": [], "hostNetwork": False, "nodeSelector": None}
    assert listed(old, new) == {}, "the API server writes these so, or not at all"
    limits["cpu"] = "1"
    new["spec"]["selector"]["matchLabels"]["app"] = "other"
    new["spec"]["replicas"] = UNKNOWN
    assert listed(old, new) == {
        "spec.replicas": "UPDATE",
        "spec.selector.matchLabels.app": "UPDATE replaces",
        "spec.template.spec.containers[0].resources.limits.cpu": "UPDATE",
    }
    colours = config_map("one", data={"a.b": "blue", "c": "d"}), config_map("one", data={"a.b": "red"})
    assert listed(*colours) == {'data["a.b"]': "UPDATE replaces", "data.c": "DELETE replaces"}
    assert listed(config_map("one"), config_map("two")) == {"metadata.name": "UPDATE replaces"}
    custom = {"apiVersion": "example.com/v1", "kind": "Wall", "metadata": {"name": "w"}, "spec": {}}
    assert listed(custom, {**custom, "spec": {"height": 0}}) == {"spec.height": "ADD"}, "it isn't dropped"


@pytest.mark.prove
def test_kueue_and_jobset_whole(cluster: Lab, stack: Stack) -> None:
    listed = [
        resource
        for file in ("jobset", "kueue")
        for resource in documents((folder(QUEUE) / f"{file}.yaml").read_text())
    ]
    first = {"Namespace": 0, "CustomResourceDefinition": 1}
    listed.sort(key=lambda resource: first.get(resource["kind"], 2))
    objects: dict[str, Object] = {}
    for resource in listed:
        meta = resource["metadata"]
        before = [name for name, other in objects.items() if other["kind"] in first]
        after = before if resource["kind"] not in first else []
        name = "/".join(filter(None, (resource["kind"], meta.get("namespace"), meta["name"])))
        objects[name] = {**resource, "after": after}
    managers = [name for name in objects if name.startswith("Deployment/")]
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "any"}}
    objects["flavor"] = {**flavor, "spec": {}, "after": managers}
    stack.write(objects)
    begun = time.monotonic()
    stack.pulumi("preview")
    planned = time.monotonic()
    stack.up()
    up = time.monotonic()
    stack.up("--expect-no-changes")
    same = time.monotonic()
    assert cluster.api.get("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "any")
    stack.pulumi("refresh", "--yes", "--skip-preview")
    stack.up("--expect-no-changes")
    gone = time.monotonic()
    stack.destroy()
    end = time.monotonic()
    times = {"preview": planned - begun, "up": up - planned, "no-op": same - up,
             "refresh and no-op": gone - same, "destroy": end - gone}  # fmt: skip
    print(f"{len(objects)} objects: {', '.join(f'{what} {s:.0f} s' for what, s in times.items())}")
    for resource in listed:
        left = None
        try:
            left = cluster.api.get(resource["apiVersion"], resource["kind"], resource["metadata"]["name"],
                                   resource["metadata"].get("namespace", ""))  # fmt: skip
        except KubernetesError:
            continue
        assert left is None, resource["metadata"]
