"""Block `pulumi destroy` while fleet members, queued jobs or runs depend on the stack, and a node pool's
deletion or replacement while jobs run on its nodes.

They are in no stack. Each stack therefore holds a resource that depends on all others: its
deletion comes first, queries Google, and fails while something lives. It is a dynamic resource, whose
code a plain `pulumi destroy` runs without the program.
https://www.pulumi.com/docs/iac/concepts/providers/dynamic-providers/
"""

import re
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pulumi
from pulumi import dynamic

from infra.errors import CommandError, InfraError
from infra.google.failures import FOR_PEOPLE, Kind
from settings_schema import foreign
from settings_schema.foreign import ForeignError

KINDS = MEMBERS, JOBS, RUNS, PODS, SLICES = "members", "jobs", "runs", "pods", "slices"
FIXED, GROWING = "fixed", "growing"
_SHOWN = 5
_AT_ONCE = 32  # a record is a request
_RECORD = re.compile(r"[^/]+/(r[0-9]{1,20})/run\.json")
_WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


class LivingError(Exception):
    """A member, job or run lives, or may live."""


class InUseError(LivingError):
    """`names` of members, jobs or runs live; `noun` is what they are, singular and plural."""

    def __init__(self, names: Sequence[str], noun: tuple[str, str], fix: str):
        counted = f"{len(names)} {noun[len(names) != 1]}"
        super().__init__(f"in use by {counted}: {_listed(names)}\n    fix: {fix}; then again")
        self.names, self.noun, self.fix = tuple(names), noun, fix


class _LivingProvider(dynamic.ResourceProvider):
    """Provider of a placeholder; only `delete` acts."""

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        return dynamic.CreateResult(props["what"], outs=props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        with _shown():
            refuse_change(_olds, _news)
        changes = _olds.get("labels") != _news.get("labels")
        # A pool that is replaced is unknown here, and what guards it is deleted before it.
        replaces = ["labels"] if changes and _olds.get("what") == PODS else []
        return dynamic.DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.UpdateResult:
        return dynamic.UpdateResult(outs=_news)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        with _shown():
            refuse(
                _props["what"],
                _props["project"],
                _props["environment"],
                _props["labels"],
                _props.get("namespace", ""),
            )


@contextmanager
def _shown() -> Iterator[None]:
    """Make Pulumi show a sentence instead of a traceback."""
    try:
        yield
    except LivingError as error:
        output = str(error)
        traceback.format_exc = lambda *_, **__: output
        raise


class Living(dynamic.Resource):
    """Placeholder whose deletion fails while members, jobs or runs depend on the stack."""

    def __init__(
        self,
        what: str,
        project: str,
        environment: str,
        labels: pulumi.Input[dict[str, pulumi.Input[str]]],
        needs: Sequence[pulumi.Resource],
        namespace: str = "",
    ):
        """Guard `needs` while MEMBERS or SLICES with `labels`, or JOBS on clusters with them, live.

        Of JOBS on one cluster `labels` are its full name, as `cluster`.

        It is created last.

        `namespace`: restricts JOBS to one. RUNS have their records in the label `folder` of `bucket`; while
        one trains by the label `train`, that can't be changed. PODS are on the nodes of the label `pool` of
        `cluster`; `namespace` is the pool's name, which tells guards apart. FIXED are labels by the path of
        their setting, which can't change while the thing that `namespace` names is there; GROWING are
        numbers that can't become less.
        """
        name = f"{what}-{namespace}" if namespace else what
        provider = pulumi.ProviderResource("pulumi-python", name, {})
        props = {"what": what, "project": project, "environment": environment, "labels": labels}
        super().__init__(
            _LivingProvider(),
            name,
            {**props, "namespace": namespace},
            pulumi.ResourceOptions(provider=provider, depends_on=list(needs)),
        )


def refuse_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise LivingError where a label changes that can't.

    Where runs train by a `pipeline:train` that changes nobody would end them.
    """
    if before.get("what") == FIXED:
        _refuse_fixed(before, after)
    if before.get("what") == GROWING:
        _refuse_less(before, after)
    train = before.get("labels", {}).get("train")
    if before.get("what") != RUNS or train in (None, after["labels"].get("train")):
        return
    environment = before["environment"]
    with _known(f"whether runs of the pipeline train by {train}"):
        running = [run for run, by in _unfinished(before["project"], before["labels"]) if by == train]
    if running:
        fix = f"pipeline:train: {train}, or tpu pipeline cancel {environment} RUN, or wait for their end"
        problem = f"{_listed(running)} train by {train}, and nobody would keep and end what trains"
        raise LivingError(f"{problem}\n    fix: {fix}; then again")


def _refuse_fixed(before: dict[str, Any], after: dict[str, Any]) -> None:
    new = after["labels"]
    changed = {key: value for key, value in before["labels"].items() if new.get(key, value) != value}
    if changed:
        shown = ", ".join(f"{key}: {value} -> {new[key]}" for key, value in changed.items())
        back = ", ".join(f"{key}: {value}" for key, value in changed.items())
        layer, environment = next(iter(changed)).partition(":")[0], before["environment"]
        fix = f"write {back}; or, to have it anew: tpu down {environment} {layer}"
        problem = f"{shown}: it can't be changed while the {before['namespace']} is there"
        raise LivingError(f"{problem}\n    fix: {fix}, then tpu up {environment} {layer}")


def _refuse_less(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key, old in before["labels"].items():
        new = after["labels"].get(key, old)
        if int(new) < int(old):
            problem = f"{key}: {old} -> {new}: the {before['namespace']} can't be made smaller"
            raise LivingError(f"{problem}\n    fix: write {key}: {old}, or more")


def refuse(what: str, project: str, environment: str, labels: dict[str, str], namespace: str = "") -> None:
    """Raise LivingError where a live member, an unfinished job or a run depends on the stack."""
    if what in (FIXED, GROWING):
        return
    find, fix, noun = {
        MEMBERS: (
            _of_fleets,
            f"tpu fleet delete {environment} SLICES, or --orphans if it knows no slice of the name",
            ("member of a fleet", "members of fleets"),
        ),
        JOBS: (_jobs, f"tpu job cancel {environment} TEAM JOB, or wait for their end", ("job", "jobs")),
        RUNS: (
            _runs,
            f"tpu pipeline cancel {environment} RUN, or wait for their end",
            ("run of the pipeline", "runs of the pipeline"),
        ),
        PODS: (_pods, f"tpu job cancel {environment} TEAM JOB, or wait for their end", ("job", "jobs")),
        SLICES: (
            _slices,
            f"scancel what runs, nodeCountStatic: 0, tpu up {environment} slurm: idle slices then go, after "
            "slurm:suspendTimeS",
            ("slice of Slurm", "slices of Slurm"),
        ),
    }[what]
    if what == PODS:
        namespace = ""
    with _known(f"whether {noun[1]} live"):
        prefix = f"{namespace}/" if namespace else ""
        living = sorted(name for name in _if_on(find(project, labels)) if name.startswith(prefix))
    if living:
        slices = dict.fromkeys(name.partition("/")[0] for name in living)
        raise InUseError(living, noun, fix.replace("SLICES", " ".join(f"--slice {name}" for name in slices)))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")


@contextmanager
def _known(what: str) -> Iterator[None]:
    """Raise LivingError for requests that fail, with the next step."""
    from infra.google.client import RequestError  # late: Google's libraries are slow to import

    try:
        yield
    except RequestError as error:
        failure = error.failure
        why = f"it isn't known {what}: {failure.kind}: {failure.message}"
        fix = f"{failure.fix}; then again" if failure.kind in FOR_PEOPLE else "the same command again"
        raise LivingError(f"{why}\n    fix: {fix}") from None
    except InfraError as error:
        raise LivingError(f"it isn't known {what}: {error}") from None


def _if_on(names: Iterator[str]) -> Iterator[str]:
    """Yield names; none where the API is off: nothing of it lives."""
    from infra.google.client import RequestError

    try:
        yield from names
    except RequestError as error:
        if error.failure.kind is not Kind.API_OFF:
            raise


def _slices(project: str, labels: dict[str, str]) -> Iterator[str]:
    return (name.partition("/")[2] for name in _of_fleets(project, labels))


def _of_fleets(project: str, labels: dict[str, str]) -> Iterator[str]:
    """Yield FLEET/NODE."""
    from infra.google.client import Client

    for node in Client(project).nodes("-", "name,labels"):
        if "fleet" in node.get("labels", {}) and labels.items() <= node["labels"].items():
            yield f"{node['labels']['fleet']}/{node['name'].rpartition('/')[2]}"


def _runs(project: str, labels: dict[str, str]) -> Iterator[str]:
    """Yield the names of runs that haven't ended: without the function nothing ends their training."""
    return (run for run, _ in _unfinished(project, labels))


def _unfinished(project: str, labels: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the names of runs that haven't ended, and by what they train; empty if they don't.

    Raises CommandError for a record that can't be read.
    """
    from infra.google.client import Client, RequestError, bucket_url

    if "bucket" not in labels:
        raise CommandError("an older version has made the stack\n    fix: tpu up ENV pipeline; then again")
    client, bucket = Client(project), labels["bucket"]
    query = {"prefix": f"{labels['folder']}/", "fields": "items(name),nextPageToken"}
    try:
        items = [*client.items(f"{bucket_url(bucket)}/o", "items", query)]
    except RequestError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        return
    records = [match for item in items if (match := _RECORD.fullmatch(str(item["name"])))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        states = pool.map(partial(_state, client, bucket), (match[0] for match in records))
        yield from (
            (match[1], train)
            for match, (outcome, train) in zip(records, states, strict=True)
            if outcome == "running"
        )


def _state(client: Any, bucket: str, name: str) -> tuple[str, str]:
    """Return outcome and `train` of a run's record; empty for one that was deleted meanwhile."""
    from infra.google.client import object_url

    content = client.content(object_url(bucket, name))
    try:
        parsed = {} if content is None else foreign.parse(content)
        return foreign.text(parsed, "outcome", "[a-z_]{1,40}"), foreign.text(parsed, "train")
    except ForeignError as error:
        url = f"gs://{bucket}/{name}"
        raise CommandError(f"{url}: {error}\n    fix: gcloud storage rm {url}; then again") from None


def _jobs(project: str, labels: dict[str, str]) -> Iterator[str]:
    """Yield NAMESPACE/JOB of unfinished jobs that Kueue knows."""
    from infra.google.client import RequestError

    for cluster in _clusters(project, labels):
        try:
            for workload in cluster.items(_WORKLOADS):
                conditions = {
                    c["type"]: c["status"] for c in workload.get("status", {}).get("conditions", ())
                }
                if conditions.get("Finished") != "True":
                    meta = workload["metadata"]
                    owner = next((o["name"] for o in meta.get("ownerReferences", ())), meta["name"])
                    yield f"{meta['namespace']}/{owner}"
        except RequestError as error:
            if error.failure.kind is not Kind.MISSING:  # of a cluster without Kueue
                raise


def _clusters(project: str, labels: dict[str, str]) -> Iterator[Any]:
    """Yield the clusters with labels, or the one that `cluster` names, if it is there."""
    from infra.google.client import Client
    from infra.google.kubernetes import Cluster, endpoint_of, every

    client = Client(project)
    if "cluster" not in labels:
        yield from (cluster for _, cluster in every(client, labels))
    elif endpoint := endpoint_of(client, labels["cluster"]):
        yield Cluster(client, endpoint)


def _pods(project: str, labels: dict[str, str]) -> Iterator[str]:
    """Yield NAMESPACE/JOB of what runs on a pool's nodes, beside what runs on every node."""
    if (cluster := next(_clusters(project, labels), None)) is None:
        return
    selector = {"labelSelector": f"cloud.google.com/gke-nodepool={labels['pool']}"}
    nodes = {node["metadata"]["name"] for node in cluster.items("/api/v1/nodes", selector)}
    if not nodes:
        return
    running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    jobs = set()
    for pod in cluster.items("/api/v1/pods", running):
        meta = pod["metadata"]
        owner = next(iter(meta.get("ownerReferences", ())), {"kind": "", "name": meta["name"]})
        if pod["spec"].get("nodeName") in nodes and owner["kind"] not in ("DaemonSet", "Node"):
            name = meta.get("labels", {}).get("jobset.sigs.k8s.io/jobset-name", owner["name"])
            jobs.add(f"{meta['namespace']}/{name}")
    yield from sorted(jobs)
