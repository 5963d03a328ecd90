"""Runs the real `__main__.py` against a recording stand-in for the Pulumi engine."""

import asyncio
import contextvars
import functools
import logging
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pulumi
from google.protobuf.json_format import MessageToDict
from pulumi.runtime import mocks
from pulumi.runtime.proto import source_pb2
from pulumi.runtime.settings import SETTINGS
from pulumi.runtime.stack import Stack, run_pulumi_func, wait_for_rpcs

from google_facts.agents import AGENTS
from infra.core import upstream
from infra.engine.registry import layers
from infra.engine.settings import parse
from infra.layers.queue import manifests
from infra.layers.tpu import startup
from infra.settings.schema import Relation, Settings
from infra.settings.sources import ROOT, as_pulumi_hands_it_over

PROJECT, PROJECT_NUMBER = "my-project", "123456789012"
GENERATION = 1_790_000_000_000_000  # of every object that a program uploads
DNS_NAME = "gke-0123-123456789012.us-east5.gke.goog"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"  # how the engine writes a value that a preview can't know
BASE: dict[str, Any] = {
    "pulumi:disable-default-providers": ["*"],
    "gcp:project": PROJECT,
    "storage:bucketName": "my-project-checkpoints",
    "storage:location": "us-east5",
    "data:snapshot": "training-data",
    "tpu:bundle": "ab" * 32,
    "tpu:slices": [
        {
            "name": "train",
            "acceleratorType": "v6e-16",
            "zones": ["us-east5-b"],
            "spot": True,
            "run": "train tiny.toml",
        }
    ],
}
OFF = frozenset(
    layer.name
    for layer in layers()
    if not layer.always_on and not any(key.startswith(f"{layer.name}:") for key in BASE)
)
"""Layers that these settings leave off."""
UPSTREAM: dict[str, dict[str, Any]] = {
    "storage": {
        "bucketName": "bucket-that-is-up",
        "controllerBucketName": "bucket-that-is-up-fleet",
        "stepsBucketName": "steps-bucket-that-is-up",
        "serviceAccountEmail": "up@my-project.iam.gserviceaccount.com",
        "projectNumber": PROJECT_NUMBER,
    },
    "network": {
        "networkId": "projects/my-project/global/networks/up",
        "subnetIds": {"us-east5": "projects/my-project/regions/us-east5/subnetworks/up"},
        "mtu": 8896,
    },
    "data": {"diskIds": {"us-east5-b": "projects/my-project/zones/us-east5-b/disks/up"}},
    "builds": {"accountEmail": "tpu-builds@my-project.iam.gserviceaccount.com"},
}


def parsed(
    values: Mapping[str, Any], environment: str = "dev", relations: Sequence[Relation] = ()
) -> Settings:
    """Return the settings of a file with these values; raises SettingsError with every problem."""
    return parse(environment, as_pulumi_hands_it_over(dict(values), "f"), "f", relations=relations)


class EngineError(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A call that failed, as the engine tells it."""

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return self.message


@dataclass(frozen=True)
class Registration:
    """A resource as the program declared it: inputs in Pulumi's own spelling, and its options."""

    type: str
    name: str
    inputs: dict[str, Any]
    options: dict[str, Any]


@dataclass
class Recording(pulumi.runtime.Mocks):
    """Calls of a program, and the answers to them."""

    preview: bool
    stacks: Mapping[str, Mapping[str, Any]]
    objects: frozenset[str] = frozenset()
    network_mtu: int = 8896
    existing: Mapping[str, Any] = field(default_factory=dict)  # what a resource that is read answers
    environment: str = "dev"
    raw_location: str = "US-EAST5"  # of somebody else's raw bucket; empty where it isn't there
    secret: tuple[str, ...] = ()
    resources: list[Registration] = field(default_factory=list)
    names: set[tuple[str, str]] = field(default_factory=set)
    reads: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    exports: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """A preview answers with the inputs alone, so that ids and states are unknown, as in the engine."""
        outputs = dict(args.inputs)
        if (args.typ, args.name) in self.names:  # the engine's rule, but for the parents' types in the URN
            raise EngineError(f"Duplicate resource URN …{args.typ}::{args.name}; try giving it a unique name")
        self.names.add((args.typ, args.name))
        if args.resource_id:
            self.reads.append((args.typ, args.resource_id))
            return args.resource_id, {**outputs, "mtu": self.network_mtu, **self.existing}
        if self.preview or not args.custom:
            return "", outputs
        project, name = PROJECT, args.inputs.get("name", args.name)
        zone, region = args.inputs.get("zone"), args.inputs.get("region")
        ids = {
            "gcp:compute/network:Network": f"projects/{project}/global/networks/{name}",
            "gcp:compute/subnetwork:Subnetwork": f"projects/{project}/regions/{region}/subnetworks/{name}",
            "gcp:compute/disk:Disk": f"projects/{project}/zones/{zone}/disks/{name}",
            "gcp:compute/instance:Instance": f"projects/{project}/zones/{zone}/instances/{name}",
            "gcp:tpu/v2Vm:V2Vm": f"projects/{project}/locations/{zone}/nodes/{name}",
        }
        if args.typ == "gcp:tpu/v2Vm:V2Vm":
            outputs |= {"state": "READY", "networkEndpoints": [{"ipAddress": "10.64.32.2"}]}
        if args.typ == "gcp:serviceaccount/account:Account":
            outputs["email"] = f"{args.inputs['accountId']}@{project}.iam.gserviceaccount.com"
            outputs["name"] = f"projects/{project}/serviceAccounts/{outputs['email']}"
        if args.typ == "gcp:compute/address:Address":
            outputs["address"] = "10.64.32.9"
        if args.typ == "gcp:filestore/instance:Instance":
            outputs["networks"] = [{**args.inputs["networks"][0], "ipAddresses": ["10.64.48.2"]}]
        if args.typ == "gcp:storage/bucketObject:BucketObject":
            outputs["generation"] = GENERATION
        if args.typ == "gcp:projects/serviceIdentity:ServiceIdentity":
            agent = AGENTS[args.inputs["service"].partition(".")[0]].email(PROJECT_NUMBER)
            outputs |= {"email": agent, "member": f"serviceAccount:{agent}"}
        if args.typ == "gcp:storage/bucket:Bucket":
            outputs["projectNumber"] = int(PROJECT_NUMBER)
        if args.typ == "gcp:container/cluster:Cluster":
            outputs["controlPlaneEndpointsConfig"] = {"dnsEndpointConfig": {"endpoint": DNS_NAME}}
        return ids.get(args.typ, f"{args.name}-id"), outputs

    def call(self, args: mocks.MockCallArgs) -> Any:
        """Stack outputs and bucket objects, or the engine's own errors."""
        self.calls.append((args.token, args.args, args.provider))
        if args.token == "pulumi:pulumi:readStackOutputs":
            organization, layer, stack = args.args["name"].split("/")
            assert (organization, stack) == ("organization", self.environment)
            if layer not in self.stacks:
                raise EngineError(f'unknown stack "{args.args["name"]}"')
            outputs, secret = dict(self.stacks[layer]), list(self.secret)
            return {"name": args.args["name"], "outputs": outputs, "secretOutputNames": secret}
        if args.token == "gcp:storage/getBucketObject:getBucketObject":
            url = f"gs://{args.args['bucket']}/{args.args['name']}"
            if url not in self.objects:
                raise EngineError("googleapi: got HTTP response code 404 with body: No such object")
            return {"selfLink": url, "name": args.args["name"]}
        if args.token == "gcp:storage/getBucket:getBucket":
            if not self.raw_location:
                raise EngineError("googleapi: Error 404: The specified bucket does not exist., notFound")
            known = {"location": self.raw_location, "projectNumber": int(PROJECT_NUMBER)}
            return {"name": args.args["name"], **known, **self.existing}
        if args.token == "gcp:storage/getBuckets:getBuckets":
            others = self.existing.get("projectNumber", int(PROJECT_NUMBER)) != int(PROJECT_NUMBER)
            return {"buckets": [] if others else [{"name": args.args["prefix"]}]}
        if args.token == "gcp:storage/getProjectServiceAccount:getProjectServiceAccount":
            email = AGENTS["storage"].email(PROJECT_NUMBER)
            return {"emailAddress": email, "member": f"serviceAccount:{email}"}
        raise EngineError(f"unexpected call {args.token}")

    def of(self, token: str) -> list[Registration]:
        """All resources of a type by name; the engine gets them in no certain order."""
        return sorted(
            (resource for resource in self.resources if resource.type == token), key=lambda item: item.name
        )

    def only(self, token: str) -> Registration:
        """The one resource of a type."""
        (item,) = self.of(token)
        return item

    def named(self, token: str, name: str) -> Registration:
        """The resource of a type with a name."""
        (entry,) = [item for item in self.of(token) if item.name == name]
        return entry


class Monitor(mocks.MockMonitor):
    """Pulumi's mock monitor, keeping the options of every registration, which `Mocks` never see."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 (gRPC's name)
        if request.type != "pulumi:pulumi:Stack":
            recording = self.mocks
            assert isinstance(recording, Recording)
            plain = MessageToDict(request)
            options = {key: value for key, value in plain.items() if key != "object"}
            recording.resources.append(
                Registration(request.type, request.name, plain.get("object", {}), options)
            )
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


class _Log(logging.Handler):
    def __init__(self, lines: list[str]):
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(
    layer: str,
    changes: Mapping[str, Any] | None = None,
    *,
    preview: bool = False,
    up: Mapping[str, Mapping[str, Any]] | None = None,
    published: bool = True,
    missing: str | None = None,
    network_mtu: int = 8896,
    environment: str = "dev",
    raw_location: str = "US-EAST5",
    read: Mapping[str, Any] | None = None,
    into: list[Recording] | None = None,
) -> Recording:
    """Run a layer's program and wait for all that it started. A change to None removes a key; `missing` is
    the URL of one object that isn't there though a bundle is published; `into` gets what is recorded of a
    program that fails, too.
    """
    values = {key: value for key, value in {**BASE, **(changes or {})}.items() if value is not None}
    stacks = UPSTREAM if up is None else up
    bucket = stacks.get("storage", {}).get("bucketName", "")
    bundles = (values.get(key) for key in ("tpu:bundle", "slurm:bundle"))
    objects = (*(f"manifests/{id_}" for id_ in bundles), f"blobs/{startup.script_sha256()}")
    existing = {f"gs://{bucket}/bundles/{name}" for name in objects if published}
    recording = Recording(
        preview, stacks, frozenset(existing - {missing}), network_mtu, read or {}, environment, raw_location
    )
    if into is not None:
        into.append(recording)
    execute(layer, values, recording)
    return recording


def execute(
    project: str, values: dict[str, Any], recording: Recording, program: Path = ROOT / "__main__.py"
) -> None:
    """Run a program, of the layer that is called as the project, into `recording`, in a context of its own:
    Pulumi keeps its state in context variables. What the program raises is raised here.
    """
    contextvars.Context().run(_run, project, values, recording, program)


def _run(project: str, values: dict[str, Any], recording: Recording, program: Path) -> None:
    upstream._stack.cache_clear()
    logger = logging.Logger("pulumi-program", logging.INFO)
    logger.addHandler(_Log(recording.log))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        pulumi.runtime.set_mocks(
            recording,
            project=project,
            stack=recording.environment,
            preview=recording.preview,
            logger=logger,
            monitor=Monitor(recording),
            organization="organization",
        )
        pulumi.runtime.set_all_config(as_pulumi_hands_it_over(values, "Pulumi.dev.yaml"))
        # No state here could have been interrupted, and no cluster could be gone.
        checked = mock.patch(
            "infra.layers.queue.cluster.check", lambda _, endpoint: recording.checked.append(endpoint)
        )
        short = mock.patch.object(manifests, "stages", _without_schemas)
        # The values replace those of a file, which the folder's other files aren't compared with.
        alone = mock.patch("infra.engine.before.shared_names", return_value=([], []))
        # A stack of calls with each resource, which is a sixth of a recording's time and not recorded.
        untraced = mock.patch("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)
        with mock.patch("infra.engine.updates.refuse_interrupted"), checked, short, alone, untraced:
            loop.run_until_complete(run_pulumi_func(lambda: _program(recording, program)))
    finally:
        SETTINGS.outputs.clear()  # of a program that failed, which the next one would wait for
        asyncio.set_event_loop(None)
        loop.close()


_stages = manifests.stages


@functools.cache
def _without_schemas(name: str, image: str, fair_sharing: bool = False) -> tuple[list[dict[str, Any]], ...]:
    """Return the manifests without the schemas of their kinds: 2 MB, which cost each recording a second."""
    return tuple(
        [{**item, "spec": {}} if item["kind"] == "CustomResourceDefinition" else item for item in stage]
        for stage in _stages(name, image, fair_sharing)
    )


async def _program(recording: Recording, program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")
    await wait_for_rpcs()
    root = pulumi.runtime.get_root_resource()
    assert isinstance(root, Stack)
    for name, value in root.outputs.items():
        output = pulumi.Output.from_input(value)
        known = await output.is_known()
        recording.exports[name] = await output.future() if known else "unknown"
