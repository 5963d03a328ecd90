"""What would keep a fleet from working, said before or while it does: one finding for each thing looked at.

Every question is asked whatever became of the others. What nobody answers is unknown, and neither fine nor
missing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fleet.environment import AdHoc
from fleet.errors import FleetError
from fleet.failures import Failure, Kind, fix_of
from fleet.google import AskedError
from fleet.members import orphans, placed
from fleet.named import LAYER, read_stack
from fleet.project import UNLIMITED, Limits, Project, Quota, chips_to_move, chips_wanted
from fleet.roles import ON_ACCOUNT, ON_BUCKET, ON_PROJECT
from fleet.state import Owner, Seen, View, ZoneView
from fleet.store import leader_of
from infra import names
from infra.catalog import CATALOG
from infra.cli import Pulumi
from infra.errors import InfraError
from infra.google_ids import places
from infra.nodes import Node, nodes
from infra.settings import Settings
from infra.settle import settle_command, unsettled
from infra.tpu import startup
from tools.doctor import MISSING, OK, OPTIONAL, Finding, table

UNKNOWN = "unknown"
_AT_ONCE = 8  # fewer than the connections to one host that a session keeps
Check = Callable[[], Iterator[Finding]]


@dataclass(frozen=True)
class Patient:
    """An environment, the members that are meant, and how Google is asked; None where nobody is logged in."""

    settings: Settings
    members: Sequence[Node]
    project: Project | None
    login: str = ""  # why nobody is

    @property
    def google(self) -> Project:
        """Google, as the account that is logged in. Raises AskedError."""
        if self.project is None:
            raise AskedError(Failure(Kind.LOGIN, "nobody is logged in"))
        return self.project


def patient(settings: Settings, members: Sequence[Node]) -> Patient:
    """Logs in, if that can be done."""
    try:
        bucket, ours = settings.storage.bucket_name, names.controller_bucket(settings)
        return Patient(settings, members, Project(settings.gcp.project, bucket, ours))
    except FleetError as error:
        return Patient(settings, members, None, str(error).partition("\n")[0])


def examine(sick: Patient) -> list[Finding]:
    """Looks at everything, at once."""
    zones = sorted({zone for one in sick.members for zone in (*one.places, *one.spread)})
    checks: list[tuple[str, Check]] = [
        ("login", lambda: _login(sick)),
        ("APIs", lambda: _services(sick)),
        ("permissions", lambda: _permissions(sick)),
        ("host account", lambda: _host_account(sick)),
        ("bucket", lambda: _bucket(sick)),
        ("bundle", lambda: _bundle(sick)),
        *((f"stack {layer}", lambda layer=layer: _stack(sick, layer)) for layer in names.LAYERS),
        *((f"unheld {layer}", lambda layer=layer: _unheld(sick, layer)) for layer in names.LAYERS),
        *((f"zone {zone}", lambda zone=zone: _zone(sick, zone)) for zone in zones),
        ("quota", lambda: _quotas(sick)),
        ("controller", lambda: _controller(sick)),
        ("orphans", lambda: _orphans(sick)),
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answered = list(pool.map(lambda check: _answered(*check), checks))
    return [finding for found in answered for finding in found]


def told(findings: Sequence[Finding]) -> str:
    """A line for each, and what is missing."""
    ends = [
        f"{len(some)} {state}: {', '.join(dict.fromkeys(some))}"
        for state in (MISSING, UNKNOWN)
        if (some := [one.what for one in findings if one.state == state])
    ]
    return f"{table(findings)}\n\n{'; '.join(ends) or 'nothing is missing'}"


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether all that was asked was answered, and nothing is missing."""
    return all(one.state in (OK, OPTIONAL) for one in findings)


def _answered(what: str, check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check())
    except AskedError as error:
        failure = error.failure
        about = f" ({failure.about})" if failure.about else ""
        found.append(Finding(what, UNKNOWN, f"{failure.kind}{about}: {failure.message}", failure.fix))
    except InfraError as error:
        said, _, fix = str(error).partition("\n    fix: ")
        found.append(Finding(what, UNKNOWN, said, fix or "pulumi login, where that isn't done"))
    return found


def _login(sick: Patient) -> Iterator[Finding]:
    try:
        account = sick.google.account()
    except AskedError as error:
        if error.failure.kind is not Kind.LOGIN:
            raise
        yield Finding("login", MISSING, sick.login or error.failure.message, fix_of(Kind.LOGIN))
    else:
        yield Finding("login", OK, account or "valid; it doesn't say whose it is")


def _services(sick: Patient) -> Iterator[Finding]:
    wanted = names.services(sick.settings)
    off = sorted(set(wanted) - sick.google.services())
    if off:
        fix = f"{names.up_command('storage', sick.settings.environment)}, which enables them"
        yield Finding("APIs", MISSING, f"off: {', '.join(off)}", fix)
    else:
        yield Finding("APIs", OK, f"all {len(wanted)} are on")


def _permissions(sick: Patient) -> Iterator[Finding]:
    project = sick.settings.gcp.project
    wanted = [one for each in ON_PROJECT.values() for one in each]
    fix = f"gcloud projects add-iam-policy-binding {project} --member=user:YOU --role="
    yield from _granted("permissions", ON_PROJECT, sick.google.held(wanted), lambda role: f"{fix}{role}")


def _host_account(sick: Patient) -> Iterator[Finding]:
    email, environment = names.service_account_email(sick.settings), sick.settings.environment
    fix = f"your address in storage:serviceAccountUsers, then {names.up_command('storage', environment)}"
    try:
        held = sick.google.held_on_account(email, ON_ACCOUNT["roles/iam.serviceAccountUser"])
    except AskedError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        yield Finding("host account", MISSING, f"no {email}", names.up_command("storage", environment))
    else:
        yield from _granted("host account", ON_ACCOUNT, held, lambda _: fix)


def _bucket(sick: Patient) -> Iterator[Finding]:
    yield from _one_bucket(sick, "bucket", sick.google.bucket)
    yield from _one_bucket(sick, "controller's bucket", sick.google.controller_bucket)


def _one_bucket(sick: Patient, what: str, bucket: str) -> Iterator[Finding]:
    environment = sick.settings.environment
    try:
        held = sick.google.held_on_bucket(bucket, ON_BUCKET["roles/storage.objectUser"])
    except AskedError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        yield Finding(what, MISSING, f"no gs://{bucket}", names.up_command("storage", environment))
        return
    command = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=user:YOU --role="
    yield from _granted(what, ON_BUCKET, held, lambda role: f"{command}{role}")


def _granted(
    what: str, wanted: Mapping[str, tuple[str, ...]], held: frozenset[str], fix: Callable[[str], str]
) -> Iterator[Finding]:
    """A finding for each role that would help, or one that all is granted."""
    lacking = {role: [one for one in some if one not in held] for role, some in wanted.items()}
    for role, some in lacking.items():
        if some:
            yield Finding(what, MISSING, f"not granted: {', '.join(some)} ({role} holds it)", fix(role))
    if not any(lacking.values()):
        yield Finding(what, OK, f"all {sum(map(len, wanted.values()))} granted")


def _bundle(sick: Patient) -> Iterator[Finding]:
    bundle, publish = sick.settings.tpu.bundle, f"make publish ENV={sick.settings.environment}"
    if bundle is None:
        yield Finding("bundle", MISSING, "tpu:bundle isn't set: none was published", publish)
    elif not sick.google.is_there(manifest := names.bundle_manifest(bundle)):
        yield Finding("bundle", MISSING, f"no gs://{sick.settings.storage.bucket_name}/{manifest}", publish)
    elif not sick.google.is_there(names.bundle_blob(startup.script_sha256())):
        yield Finding("bundle", MISSING, "this checkout's start-up script isn't published", publish)
    else:
        yield Finding("bundle", OK, f"{bundle[:12]}… is published")


def _stack(sick: Patient, layer: str) -> Iterator[Finding]:
    environment, what = sick.settings.environment, f"stack {layer}"
    pulumi = Pulumi(environment)
    held = len(pulumi.state(layer)) if environment in pulumi.stacks(layer) else 0
    left = unsettled(environment, layer) if environment in pulumi.stacks(layer) else []
    for one in left:
        yield Finding(what, MISSING, one, settle_command(layer, environment))
    if left:
        return
    if held:
        yield Finding(what, OK, f"holds {held} resources")
    elif layer == "data" and not sick.settings.data.snapshot:
        yield Finding(what, OPTIONAL, "not up, and not needed without data:snapshot")
    else:
        yield Finding(what, MISSING, "not up", names.up_command(layer, environment))


def _unheld(sick: Patient, layer: str) -> Iterator[Finding]:
    """What a killed command, a lost state or somebody else's left at Google under a name of ours."""
    environment, what = sick.settings.environment, f"unheld {layer}"
    pulumi = Pulumi(environment)
    there = pulumi.state(layer) if environment in pulumi.stacks(layer) else []
    ids = {one.get("id") for one in there}
    missing = {id_: url for id_, url in places(sick.settings, layer).items() if id_ not in ids}
    found = [id_ for id_, url in missing.items() if sick.google.exists(url)]
    for id_ in found:
        if id_ == sick.settings.storage.bucket_name:
            fix = f"storage:adoptBucket: true, then {names.up_command(layer, environment)}"
        else:
            fix = "ask who else has a stack of it; where nobody has, delete it at Google"
        said = f"{id_} is at Google, and the stack doesn't hold it: up would end with 409"
        yield Finding(what, MISSING, said, fix)
    if not found:
        yield Finding(what, OK, "nothing of it is at Google without the stack")


def _zone(sick: Patient, zone: str) -> Iterator[Finding]:
    what, here = f"zone {zone}", [one for one in sick.members if zone in one.places]
    kinds, images = {one.kind.name for one in here}, {one.runtime_version for one in here}
    try:
        offered, versions = sick.google.accelerator_types(zone), sick.google.runtime_versions(zone)
    except AskedError as error:
        if error.failure.kind is not Kind.MISSING:
            raise
        offered = versions = frozenset[str]()
    for name, wanted, there, setting in (
        ("accelerator type", kinds, offered, f"other zones; known with v6e: {', '.join(CATALOG.zones)}"),
        ("runtime version", images, versions, f"tpu:runtimeVersion: {CATALOG.default_runtime}"),
    ):
        for one in sorted(wanted - there):
            yield Finding(what, MISSING, f"offers no {name} {one} to this project", setting)
    if kinds <= offered and images <= versions:
        yield Finding(what, OK, f"offers {', '.join(sorted(kinds | images))}")


def _quotas(sick: Patient) -> Iterator[Finding]:
    limits = sick.google.limits()
    for quota, chips in sorted(chips_wanted(sick.members).items(), key=lambda one: str(one[0])):
        asked = f"the settings ask for {chips} {_kind(quota)} chips"
        yield _quota(sick, limits, quota, chips, asked, MISSING)
    for quota, chips in sorted(chips_to_move(sick.members).items(), key=lambda one: str(one[0])):
        asked = f"a slice that is moved here needs {chips} {_kind(quota)} chips"
        yield _quota(sick, limits, quota, chips, asked, OPTIONAL)


def _kind(quota: Quota) -> str:
    return "spot" if quota.spot else "on-demand"


def _quota(sick: Patient, limits: Limits, quota: Quota, chips: int, why: str, short: str) -> Finding:
    what, limit, asked = f"quota {quota.place}", limits.of(quota), f"{quota.name}: {why}"
    if limit is None:
        return Finding(what, UNKNOWN, f"{asked}, Google lists no such quota", fix_of(Kind.QUOTA))
    if limit == UNLIMITED or chips <= limit:
        return Finding(what, OK, f"{asked}, allowed are {'all' if limit == UNLIMITED else limit}")
    request = (
        f"gcloud beta quotas preferences create --project={sick.settings.gcp.project} "
        f"--service=tpu.googleapis.com --quota-id={quota.name} "
        f"--dimensions={quota.dimension}={quota.place} --preferred-value={chips}"
    )
    return Finding(what, short, f"{asked}, allowed are {limit}", f"{fix_of(Kind.QUOTA)}; or: {request}")


def _controller(sick: Patient) -> Iterator[Finding]:
    memory, leader = leader_of(sick.google, read_stack(sick.settings.environment).id, time.time())
    yield Finding("controller", OK, leader or "none at work")
    for name, refusal in sorted(memory.refusals.items()):
        if refusal.stopped:
            fix = f"mend that, then python -m fleet recreate-preempted {sick.settings.environment}"
            yield Finding(f"held {name}", MISSING, refusal.why, fix)


def _orphans(sick: Patient) -> Iterator[Finding]:
    """Nodes of this stack, in whatever zone, that no setting asks for; and nodes of other stacks."""
    environment = sick.settings.environment
    stack = read_stack(environment)
    labels = names.labels(environment, LAYER)
    there = [seen for seen in sick.google.everywhere() if labels.items() <= seen.labels.items()]
    zones: dict[str, dict[str, Seen]] = {}
    for seen in there:
        zones.setdefault(seen.zone, {})[seen.name] = seen
    view = View(time.time(), {zone: ZoneView(nodes) for zone, nodes in zones.items()}, None)
    members = placed(nodes(sick.settings), view, Owner(labels, stack.id), {})
    found = orphans(members, view, {**labels, "stack": stack.id})
    saved = AdHoc(sick.google, stack.id).read()
    found = [seen for seen in found if seen.labels.get("fleet") not in saved]
    for seen in found:
        said = f"{seen.name} in {seen.zone}, {seen.state}: asked for by nobody, and paid for"
        fix = f"python -m fleet delete {environment} --orphans"
        yield Finding("orphans", OPTIONAL, said, fix)
    held = stack.held or ()
    others = [one for one in there if one.labels.get("stack") != stack.id and one.name not in held]
    for seen in others:
        said = (
            f"{seen.name} in {seen.zone}, {seen.state}: of another stack, {seen.labels.get('stack', 'none')}"
        )
        yield Finding(
            "orphans", OPTIONAL, said, "leave it to whose it is; python -m fleet take-over, if nobody's"
        )
    if not found and not others:
        yield Finding("orphans", OK, "none")
