"""A pipeline in a whole emulated cloud of its own, brought up and used by the real commands.

Real are the Pulumi CLI, the program, `tpu`, the function, Spark and the cloud's IAM. Machines do nothing: a
host's report is written as the hosts' account, and as its machine's guest attribute. The job that sweeps is
paused, and runs when a test calls it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from infra.engine.settings import from_file
from infra.layers.pipeline import access, paths
from infra.layers.pipeline.access import Grant
from infra.layers.tpu import startup
from infra.publish import pipeline as code
from infra.settings.schema import Settings
from infra.slices.names import bundle_blob, bundle_manifest
from rehearsal.cloud.services.serviceusage import NEW_PROJECT
from rehearsal.providers.gcp.install import install
from rehearsal.world.checkout import copy_program
from rehearsal.world.layout import cache_dir
from rehearsal.world.runtimes import ensure
from tests.limits import HANG_S, until
from tests.rehearsal.cloud.boxes.boxed_front import OWNER, REGION, Boxed

PROJECT, NUMBER = "grants-lab", "123456789012"
RAW, BUCKET, BUNDLE = f"{PROJECT}-raw", f"{PROJECT}-checkpoints", "ab" * 32
CONTROLLERS = f"{BUCKET}-fleet"
PLACE = f"projects/{PROJECT}/locations/{REGION}"
RUNNER, VIEWER = "ml-engineer@example.com", "viewer@example.com"
PROGRAM = f"tpu-pipeline-view@{PROJECT}.iam.gserviceaccount.com"
RATE = 60.0  # of Google's clock
SETTINGS: dict[str, Any] = {
    "pulumi:disable-default-providers": ["*"],
    "gcp:project": PROJECT,
    "storage:bucketName": BUCKET,
    "storage:location": REGION,
    "policy:enforcement": "advisory",
    "tpu:bundle": BUNDLE,
    "tpu:slices": [],
    "tpu:zones": [f"{REGION}-b"],
    "pipeline:rawBucketName": RAW,
    "pipeline:config": "text.toml",
    "pipeline:changes": ["output.shards=2", "output.sequence_length=64"],
    "pipeline:runners": [f"user:{RUNNER}"],
    "pipeline:viewers": [f"user:{VIEWER}"],
    "pipeline:accountUsers": [f"user:{OWNER}"],
}
_AGENTS = {
    access.EVENTARC_AGENT_ROLE: f"service-{NUMBER}@gcp-sa-eventarc.iam.gserviceaccount.com",
    access.STORAGE_AGENT_ROLE: f"service-{NUMBER}@gs-project-accounts.iam.gserviceaccount.com",
}
_ONCE = """
import runpy
from infra.engine import updates
updates.RETRIED_S = 0.0
runpy.run_module("cli", run_name="__main__", alter_sys=True)
"""
_PEOPLE = {access.RUNNER: RUNNER, access.VIEWER: VIEWER}


class CommandError(AssertionError):
    """A command's exit status isn't the one that was expected."""


class PipelineLab(Boxed):
    """`values` are settings beside SETTINGS."""

    def __init__(self, folder: Path, values: Mapping[str, Any]) -> None:
        self._tree, self._home = folder / "tree", folder / "home"
        copy_program(self._tree)
        self._home.mkdir()
        self.values = {**SETTINGS, **values}
        self.write()
        accounts = [paths.account(self.settings, account) for account in paths.ACCOUNTS]
        known = [RUNNER, VIEWER, *accounts, f"tpu-training@{PROJECT}.iam.gserviceaccount.com"]
        super().__init__(
            folder, PROJECT, clock_rate=RATE, enabled_apis=NEW_PROJECT,
            people={who: {"refresh_token": who, "roles": []} for who in known},
            spark_python=str(ensure("spark", cache_dir())),
            function_python=str(ensure("functions", cache_dir())),
        )  # fmt: skip
        self.cloud.storage.limit.now = self.cloud.world.clock.now
        for who, token in ((OWNER, "1//refresh"), *((item, item) for item in (RUNNER, VIEWER, PROGRAM))):
            login = {
                "type": "authorized_user",
                "client_id": "lab",
                "client_secret": "lab",
                "refresh_token": token,
            }
            (self._home / f"{who}.json").write_text(json.dumps(login))
        install(self._home / "pulumi")
        (folder / "state").mkdir()

    # Settings and commands

    @property
    def settings(self) -> Settings:
        """As they are written now."""
        return from_file("dev", self._tree)

    def write(self, **values: Any) -> None:
        """Change settings, whose keys have __ for a colon; None removes one."""
        changed = {key.replace("__", ":"): value for key, value in values.items()}
        path = self._tree / "Pulumi.dev.yaml"
        existing = yaml.safe_load(path.read_text())["config"] if changed else {}  # publish writes a setting
        self.values = {**self.values, **existing, **changed}
        config = {key: value for key, value in self.values.items() if value is not None}
        path.write_text(yaml.safe_dump({"config": config}))

    def tpu(
        self, *words: str, who: str = RUNNER, fine: bool | None = True, limit_s: float = HANG_S,
        once: bool = False,
    ) -> str:  # fmt: skip
        """Run `tpu` as an account; return its output. Its exit status must be as expected, None: any."""
        status, output = self.call(self._command(who, words, limit_s, once=once), limit_s + 10)
        if fine is not None and (status == 0) is not fine:
            raise CommandError(f"tpu {' '.join(words)}: {status}\n{output}")
        return str(output)

    def up(self, layer: str, *, fine: bool = True) -> str:
        """Bring a layer up as the project's owner; one that is to fail isn't tried again for minutes."""
        words = ("infra", "up", "dev", layer, "--yes", "--skip-preview")
        return self.tpu(*words, who=OWNER, fine=fine, once=not fine)

    def bring_up(self, *, publish: bool = True) -> None:
        """All that the pipeline stands on, the pipeline and, unless it isn't to be published, the code."""
        self.up("storage")
        for name in (bundle_manifest(BUNDLE), bundle_blob(startup.script_sha256())):
            self.upload(name.replace("/", "%2F"), b"", BUCKET)
        for layer in ("network", "tpu", "pipeline"):
            self.up(layer)
        self.answer("POST", f"{self._job_url()}:pause", {})
        if publish:
            code.publish(self.settings, upload=False)  # nothing in the box leads to a registry of wheels
            self.tpu("pipeline", "publish", "dev")
            self.up("pipeline")

    async def _command(
        self, who: str, words: tuple[str, ...], limit_s: float, *, once: bool = False
    ) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *(("-c", _ONCE) if once else ("-m", "cli")), *words,
            cwd=self._tree, env=self._environment(who),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            raise CommandError(f"tpu {' '.join(words)} doesn't end") from None
        return process.returncode or 0, output.decode()

    def _environment(self, who: str) -> dict[str, str]:
        bundle = str(self.tls.bundle)
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self._home),
            "PYTHONPATH": str(self._tree),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._home / f"{who}.json"),
            "PULUMI_HOME": str(self._home / "pulumi"),
            "PULUMI_BACKEND_URL": f"file://{self.folder / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "lab",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "TPU_CACHE": str(cache_dir()),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS"), bundle),
        }

    # Runs

    def text(self, folder: str, documents: int = 40) -> None:
        """Some text in a folder of the raw bucket."""
        lines = [
            json.dumps({"text": f"document {n} of {folder} has words of its own, {n * 7}"})
            for n in range(documents)
        ]
        self.upload(f"{folder}%2Fa.jsonl", "\n".join(lines).encode(), RAW)

    def runs(self, who: str = RUNNER) -> list[dict[str, Any]]:
        """All that `tpu pipeline status` knows."""
        parsed: list[dict[str, Any]] = json.loads(self.tpu("pipeline", "status", "dev", "--json", who=who))
        return parsed

    def record(self, run: str) -> dict[str, Any]:
        """A run's record; empty where there is none."""
        name = paths.record(run).replace("/", "%2F")
        url = f"storage.googleapis.com/storage/v1/b/{CONTROLLERS}/o/{name}?alt=media"
        reply = self.send("GET", url)
        return dict(json.loads(reply.body)) if reply.status == 200 else {}

    def ended(self, run: str, retry: int = 0, limit_s: float = HANG_S) -> dict[str, Any]:
        """Sweep until a run has ended, in this retry or a later one; its record."""
        return self.swept_until(run, lambda record: record["outcome"] != "running", retry, limit_s)

    def swept_until(
        self, run: str, reached: Callable[[dict[str, Any]], bool], retry: int = 0, limit_s: float = HANG_S
    ) -> dict[str, Any]:
        """Sweep until a run's record is as a test needs it; the record."""
        end = time.monotonic() + limit_s
        while not ((record := self.record(run)) and record.get("retry", 0) >= retry and reached(record)):
            assert time.monotonic() < end, f"{run}: {record}"
            self.sweep()
            time.sleep(0.2)
        return record

    def sweep(self) -> dict[str, Any]:
        """Let the sweep come now; the job with its last attempt."""
        before = self._job().get("lastAttemptTime")
        self.answer("POST", f"{self._job_url()}:run", {})
        return until(lambda: (job := self._job()).get("lastAttemptTime") != before and job)

    def _job_url(self) -> str:
        place = f"projects/{PROJECT}/locations/{paths.sweep_region(self.settings)}"
        return f"cloudscheduler.googleapis.com/v1/{place}/jobs/{paths.name(self.settings)}"

    def _job(self) -> dict[str, Any]:
        return dict(self.answer("GET", self._job_url()))

    def done(self, node: str) -> None:
        """Report as the host of a slice of one that its program has ended: in the bucket, and attested."""
        address = next(item for item in self.cloud.nodes.all() if item.name.endswith(f"/{node}")).addresses[0]
        guest = self.cloud.nodes.guest(address)
        assert guest
        assert guest.guest_attributes
        now_s = self.cloud.world.clock.now()
        status = {"state": "done", "command": "", "updated_s": now_s, "why": "", "final": True}
        guest.guest_attributes.write("tpu", "job", json.dumps(status))
        name, hosts = f"heartbeats%2F{node}%2Fworker-0", f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
        objects = f"storage.googleapis.com/{{}}storage/v1/b/{BUCKET}/o"
        for method, url, body in (
            ("POST", f"{objects.format('upload/')}?uploadType=media&name={name}", b""),
            ("PATCH", f"{objects.format('')}/{name}", {"metadata": {"state": "done"}}),
        ):
            reply = self.send(method, url, body, hosts)
            assert reply.status == 200, reply.body

    # Grants

    def grants(self) -> list[Grant]:
        """Every grant of the layer, as the settings are now."""
        now = self.settings
        return [*access.grants(now), *access.of_agents(now), *access.of_people(now)]

    def member(self, grant: Grant) -> str:
        """Return the member of a grant, as policies name it."""
        if grant.who in _PEOPLE:
            return f"user:{_PEOPLE[grant.who]}"
        agent = _AGENTS.get(grant.role) if " " in grant.who else None
        return f"serviceAccount:{agent or f'{grant.who}@{PROJECT}.iam.gserviceaccount.com'}"

    def resource(self, grant: Grant) -> str:
        """Return the resource of a grant, as the cloud names it."""
        return {
            "project": f"projects/{PROJECT}",
            "bucket": f"projects/_/buckets/{grant.what}",
            "account": f"projects/{PROJECT}/serviceAccounts/{grant.what}@{PROJECT}.iam.gserviceaccount.com",
            "repository": f"{PLACE}/repositories/{grant.what}",
            "function": f"{PLACE}/services/{paths.name(self.settings)}",
        }[grant.on]

    @contextmanager
    def without(self, grant: Grant) -> Iterator[None]:
        """It is taken away for a while, and nothing else is."""
        resource, member = self.resource(grant), self.member(grant)
        role = grant.full_role(PROJECT)
        before = self.call(self._policy(resource))
        only = re.escape(grant.only).replace(access.STACK, "[0-9a-f]{7}").replace(access.NUMBER, NUMBER)
        left, taken = [], 0
        for binding in before["bindings"]:
            expression = binding.get("condition", {}).get("expression", "")
            own = binding["role"] == role and bool(re.fullmatch(only, expression))
            members = [who for who in binding["members"] if not (own and who == member)]
            taken += len(binding["members"]) - len(members)
            left.append({**binding, "members": members})
        assert taken == 1, f"{grant.named}: {taken} bindings in {before}"
        self.call(self._set(resource, {**before, "bindings": left}))
        try:
            yield
        finally:
            self.call(self._set(resource, before))

    async def _policy(self, resource: str) -> dict[str, Any]:
        return dict(self.cloud.iam.policy(resource))

    async def _set(self, resource: str, policy: dict[str, Any]) -> None:
        self.cloud.iam.set_policy(resource, {key: value for key, value in policy.items() if key != "etag"})

    def used(self) -> dict[tuple[str, str], set[str]]:
        """Return the permissions used since the cloud began, by member and by role with resource."""
        mapping: dict[tuple[str, str], set[str]] = {}
        for (who, permission, granting), _ in self.cloud.iam.access.items():
            for role, resource in granting:
                mapping.setdefault((who, f"{role} {resource}"), set()).add(permission)
        return mapping


def named(grant: Grant) -> str:
    """A grant in a table: with the place-holders that the docs have for buckets."""
    place = {RAW: "RAW", BUCKET: "BUCKET", f"{RAW}-scratch": "RAW-scratch", CONTROLLERS: "BUCKET-fleet"}
    return replace(grant, what=place.get(grant.what, grant.what)).named
