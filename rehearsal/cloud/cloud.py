"""The emulated cloud: state, services, and the HTTP, metadata and gRPC servers before them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from functools import cached_property

from aiohttp import web

from rehearsal.cloud.config import CloudConfig, address
from rehearsal.cloud.control_server import Controls, ControlServer, listening
from rehearsal.cloud.core.clock import VirtualClock
from rehearsal.cloud.core.operations import Operations
from rehearsal.cloud.core.runtime import Runtime
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.door.requestlog import RequestLog
from rehearsal.cloud.door.server import FrontDoor
from rehearsal.cloud.iam.audit import Audit
from rehearsal.cloud.iam.credentials import CredentialsService
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.iam.oauth import OAuth
from rehearsal.cloud.machines.machines import Machines
from rehearsal.cloud.machines.metadata import MetadataServer
from rehearsal.cloud.machines.pods import PodGuests
from rehearsal.cloud.machines.sandboxes import Sandboxes
from rehearsal.cloud.services import services
from rehearsal.cloud.services.caller import Caller
from rehearsal.cloud.services.cloudbuild.builder import Builder
from rehearsal.cloud.services.compute.booting import Instances
from rehearsal.cloud.services.compute.firewall import enforce
from rehearsal.cloud.services.container.control_planes import Clusters
from rehearsal.cloud.services.dataproc.runner import Batches
from rehearsal.cloud.services.eventarc.deliveries import Deliveries
from rehearsal.cloud.services.functions.invocations import Invocations
from rehearsal.cloud.services.functions.runner import Functions
from rehearsal.cloud.services.kms import grpc as kms_grpc
from rehearsal.cloud.services.logging.entries import LoggingService
from rehearsal.cloud.services.monitoring.telemetry import Telemetry
from rehearsal.cloud.services.projects import ProjectService
from rehearsal.cloud.services.registry import Registry
from rehearsal.cloud.services.serviceusage import ServiceUsage
from rehearsal.cloud.services.storage import StorageService
from rehearsal.cloud.services.storage.control import HttpOrGrpcSite
from rehearsal.cloud.services.storage.xml import XmlApi
from rehearsal.cloud.services.tpu.entry import entry
from rehearsal.cloud.services.tpu.nodes import Durations, Nodes
from rehearsal.cloud.services.tpu.quotas import Quotas
from rehearsal.cloud.services.tpu.service import TpuService
from rehearsal.hosts.firewall import Firewall
from rehearsal.hosts.machine import Hosts, NoHosts

# Time for requests that are under way when the cloud closes.
_DRAIN_S = 2.0


class Cloud:
    """`await start()` opens the doors, the control socket last; `await close()` drains and ends all."""

    def __init__(
        self,
        config: CloudConfig,
        hosts: Hosts,
        durations: Durations | None = None,
        firewall: Firewall | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a firewall, `firewalls` are entries of the directory only."""
        self._config = config
        self._firewall = firewall
        config.directory.mkdir(parents=True, exist_ok=True)
        # State that all services share.
        self.world = world = World(
            config.project,
            config.number,
            VirtualClock(config.clock_rate),
            lags=config.lags,
            currency=config.currency,
            groups=config.groups,
            constraints=config.constraints,
            monotonic_s=monotonic_s,
            control_planes={} if config.control_planes else None,
        )
        roles = {who: [(role, on) for role, on in person["roles"]] for who, person in config.people.items()}
        self.iam = iam = Iam(world, config.owner, config.token_lifetime_s, roles)
        self.operations = operations = Operations(world)
        self.faults = Faults(world.clock, config.seed)
        self.requests = RequestLog(config.directory / "requests.jsonl")
        self.doorway = doorway = Doorway(world, self.faults, self.requests)
        # Collaborators that services share.
        self.telemetry = Telemetry(world, iam)
        self.logging = LoggingService(world, iam, self.telemetry)
        audit = Audit(world, iam, self.logging.keep, self.telemetry)
        self.caller = Caller(iam, lambda: (address(config.front_door)[0], self.port), self._own_certificate())
        self.quotas = Quotas(world.limits)
        durations = durations or Durations()
        self.machines = Machines(hosts)
        self.nodes = Nodes(world, self.machines, audit, durations, config.seed)
        self.instances = Instances(world, self.machines, config.directory / "disks")
        tpu = TpuService(world, operations, iam, self.nodes, durations, self.quotas)
        self._guests = PodGuests(world, self.machines)
        self.runtime = self.make_runtime()
        deliveries = Deliveries(world, iam, doorway, self.caller)
        # The APIs.
        more = [entry(self.nodes)]
        entered = services(world, operations, iam, self.runtime, config.zones, more)
        usage = ServiceUsage(world, operations, config.enabled_apis, self.quotas, iam)
        kms = next(service for service in entered if service.api == "cloudkms")
        self.storage = StorageService(
            world,
            iam,
            config.directory / "storage",
            doorway,
            finalized=deliveries.finalized,
            handlers=[kms_grpc.handler(kms.methods(), iam, usage.require)],
        )
        logins = {person["refresh_token"]: who for who, person in config.people.items()}
        oauth = OAuth(iam, {config.refresh_token: config.owner, **logins})
        projects, credentials = ProjectService(world, iam), CredentialsService(world, iam)
        self.front_door = FrontDoor(
            world,
            iam,
            usage,
            [usage, oauth, projects, credentials, self.logging, *entered, self.storage, tpu],
            endpoints=oauth.endpoints(),
            doorway=doorway,
            audit=audit,
            sites=[
                Invocations(world, iam, self.runtime.functions, self.caller.secret),
                Registry(world, iam, usage, config.directory / "images"),
            ],
            translators=[XmlApi()],
        )
        self._clusters = Clusters(self.world, self.iam, self.faults)
        self._runners: list[web.AppRunner] = []

    def make_runtime(self) -> Runtime:
        """Create what hooks use; without `builder` in the configuration, users' programs don't run."""
        config, world, iam, write_log = self._config, self.world, self.iam, self.logging.write
        instances = None if isinstance(self.machines.hosts, NoHosts) else self.instances
        if not config.builder:
            return Runtime(self.caller, self.telemetry, write_log, instances=instances)
        boxes = Sandboxes(self._guests, config.directory / "sandboxes", config.builder)
        python = config.function_python
        return Runtime(
            self.caller,
            self.telemetry,
            write_log,
            run_build=Builder(world, iam, boxes, self.logging.write_as).run,
            run_batch=Batches(world, iam, boxes, self.logging.write_as, config.spark_python).run,
            functions=Functions(world, iam, boxes, write_log, python) if python else None,
            instances=instances,
        )

    async def start(self) -> None:
        """Open the front door, the metadata server and, once both answer, the control socket."""
        await self.storage.start()
        self.world.spawn(self.telemetry.watch())
        if self._firewall is not None:
            self.world.spawn(enforce(self.world, self.machines.members, self._firewall))
        await self._front_site(await self.runner(self.front_door.app())).start()
        if self._config.metadata:
            server = MetadataServer(self.world, self._guests, self.iam, self.doorway)
            metadata = await self.runner(server.app())
            host, port = address(self._config.metadata)
            await web.TCPSite(metadata, host, port).start()
        control = ControlServer(
            Controls(
                self.world,
                self.iam,
                self.faults,
                self.requests,
                self.machines,
                self.nodes,
                self.instances,
                self.quotas,
                self._clusters,
                self._guests,
                self.front_door.served,
                self._firewall,
            )
        )
        runner = await self.runner(control.app())
        await web.SockSite(runner, listening(self._config.control)).start()

    def _front_site(self, runner: web.AppRunner) -> web.BaseSite:
        """Return the front door's socket; with TLS it serves gRPC clients of Cloud Storage, too."""
        host, port = address(self._config.front_door)
        if self._config.certificate is None:
            return web.TCPSite(runner, host, port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._config.certificate, self._config.key)
        return HttpOrGrpcSite(runner, host, port, context, self.storage.grpc_socket)

    def _own_certificate(self) -> ssl.SSLContext | None:
        """Return a context that trusts the front door's certificate; None for plain HTTP."""
        if self._config.certificate is None:
            return None
        trusted = self._config.ca_certificate
        return ssl.create_default_context(cafile=str(trusted) if trusted else None)

    @cached_property
    def port(self) -> int:
        """Return the front door's port; the kernel chooses it for port 0 of the configuration.

        Jobs ask for it until they are ended, when the door is closed already.
        """
        return int(self._runners[0].addresses[0][1])

    async def close(self) -> None:
        """Refuse new requests, finish those under way, cancel background work."""
        for runner in reversed(self._runners):
            await runner.cleanup()
        tasks = list(self.world.tasks)
        for task in tasks:
            task.cancel()
        await self.caller.close()
        if self.runtime.functions is not None:
            await self.runtime.functions.close()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        await self.storage.close()
        self.requests.close()
        self._config.control.unlink(missing_ok=True)

    async def runner(self, app: web.Application) -> web.AppRunner:
        """Return a runner of an application that is cleaned up when the cloud closes."""
        # A host that is switched off leaves its connections behind half open: a keep-alive must end.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_DRAIN_S, keepalive_timeout=75)
        await runner.setup()
        self._runners.append(runner)
        return runner
