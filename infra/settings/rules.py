"""Rules of values at Google: names, ranges, addresses."""

import ipaddress
import re
import shlex
from datetime import date
from string import Formatter

from infra.settings import commands
from settings_schema.rules import Rule as Rule
from settings_schema.rules import between as between
from settings_schema.rules import one_of as one_of
from settings_schema.rules import pattern as pattern


def is_network(value: str) -> bool:
    """Return True if `value` is an IPv4 range without host bits, e.g. "10.64.0.0/20"."""
    try:
        return "/" in value and bool(ipaddress.IPv4Network(value))
    except ValueError:
        return False


def is_date(value: str) -> bool:
    """Return True if `value` is a day of the calendar, e.g. "2027-06-30"."""
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def is_range_of(value: str, *wider: str) -> bool:
    """Return True for a range from /8 to /29 that is a part of one of `wider`, and outside of Docker's."""
    if not is_network(value):
        return False
    network = ipaddress.IPv4Network(value)
    inside = any(network.subnet_of(ipaddress.IPv4Network(text)) for text in wider)
    return 8 <= network.prefixlen <= 29 and inside and not network.overlaps(_OF_DOCKER)


def is_ssh(value: str, *machine: str) -> bool:
    """Return True if `value` is a program with the fields of a machine, the command as its last argument."""
    try:
        words = shlex.split(value)
        parsed = [list(Formatter().parse(word)) for word in words]
    except ValueError:
        return False
    used = [part[1:] for word in parsed for part in word if part[1] is not None]
    names = [name for name, form, conversion in used if not form and not conversion]
    return (
        len(names) == len(used)
        and {*machine, "command"} <= set(names)
        and set(names) <= {"project", "zone", "login", *machine, "command"}
        and names.count("command") == 1
        and words[-1].endswith("{command}")
        and all(part[1] is None for part in parsed[0])
    )


PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
# https://cloud.google.com/kubernetes-engine/docs/concepts/alias-ips
OF_PODS = ("100.64.0.0/10", "240.0.0.0/4")
# "Certain … products use 172.17.0.0/16 for routing within the guest operating system. For example, the
# default Docker bridge": https://cloud.google.com/vpc/docs/subnets
_OF_DOCKER = ipaddress.IPv4Network("172.17.0.0/16")
_RANGE = f"a private IPv4 range from /8 to /29 without host bits, outside {_OF_DOCKER}, which Docker has"

NAME = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
PROJECT = "[a-z][-a-z0-9]{4,28}[a-z0-9]"
# The words of which regions are named: https://cloud.google.com/about/locations
PLACE = (
    "(africa|asia|australia|europe|me|northamerica|southamerica|us)"
    r"-(central|(north|south)(east|west)?|east|west)[1-9]\d?"
)
KEY = "[A-Za-z0-9_-]{1,63}"

POLICY_RULE = pattern(
    "[A-Z]{1,2}[0-9]{1,2}", "the id of a rule, e.g. B04", "docs/reference/policy.md lists them"
)
REASON = Rule(
    lambda value: len(value.strip()) > 8 and value.replace("\n", " ").isprintable(),
    "a reason, in words",
    "say why it may be so",
)
RESOURCES = Rule(
    lambda value: len(re.sub(r"[*?]|\[.*?\]", "", value)) > 2 and value.isprintable(),
    "a resource's name, or at least three letters of it beside *",
    "name the resource, as Pulumi shows it",
)
DATE = Rule(is_date, "a date, year-month-day", 'write it as "2027-06-30", in quotes')

PROJECT_ID = pattern(
    PROJECT,
    "6 to 30 lowercase letters, digits and hyphens, first a letter, last no hyphen",
    "write the project's id (`gcloud projects list`), not its name or number",
)
RESOURCE_NAME = pattern(
    NAME,
    "1 to 63 lowercase letters, digits and hyphens, first a letter, last no hyphen",
    "rename it",
)
NETWORK_NAME = pattern(
    "[a-z]([-a-z0-9]{0,38}[a-z0-9])?",
    "1 to 40 lowercase letters, digits and hyphens (others add to it), first a letter, last no hyphen",
    "rename it",
)
# https://cloud.google.com/storage/docs/domain-name-verification
_DOMAIN = pattern(
    r"(?=.{3,222}$)(?!goog)(?!.*g[o0]{2}g[l1]e)([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]{2,63}", "", ""
)
BUCKET_NAME = pattern(
    r"(?!goog)(?!.*g[o0]{2}g[l1]e)[a-z0-9][-_a-z0-9]{1,61}[a-z0-9]",
    "3 to 63 lowercase letters, digits, hyphens and underscores, without `google` (nor `g00gle`), not "
    "starting with `goog`",
    "rename it; a bucket's name is unique in the world, so start it with the project's id",
)
DOMAIN_BUCKET_NAME = Rule(
    lambda value: BUCKET_NAME.ok(value) or _DOMAIN.ok(value),
    f"{BUCKET_NAME.text}; or a domain of yours, at most 222 characters",
    BUCKET_NAME.fix,
)
ACCOUNT_ID = pattern(
    PROJECT,
    "6 to 30 lowercase letters, digits and hyphens, first a letter, last no hyphen",
    "write the part before the @ of the account's address",
)
LOCAL_PART = r"[^@\s:;,*<>\"()]+"
"""Of an e-mail address, before the @; no wildcard, and no list or link of several."""
MEMBER = pattern(
    rf"(user|group|serviceAccount):{LOCAL_PART}@[^@\s.]+(\.[^@\s.]+)+",
    "user:, group: or serviceAccount: and an address, such as ann@example.com",
    "write e.g. group:ml-team@example.com",
)
KMS_KEY = pattern(
    rf"projects/{PROJECT}/locations/[a-z0-9-]+/keyRings/{KEY}/cryptoKeys/{KEY}",
    "projects/P/locations/L/keyRings/R/cryptoKeys/K",
    "copy it from `gcloud kms keys list --location=L --keyring=R`",
)
# https://github.com/distribution/reference: the first part is a host if it has a dot or a port.
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PORT = r":([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
DIGEST = pattern(
    rf"({_LABEL}(\.{_LABEL})+({_PORT})?|{_LABEL}{_PORT})(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)+"
    r"(:\w[\w.-]{0,127})?@sha256:[0-9a-f]{64}",
    "an image with its digest, which names its bytes: HOST/PATH[:TAG]@sha256:…",
    "write its host (Docker Hub: mirror.gcr.io/library/…) and digest: `crane digest IMAGE`, or `docker "
    "buildx imagetools inspect IMAGE`",
)
KEY_RING = pattern(KEY, "1 to 63 letters of a to z, digits, hyphens and underscores", "rename it")
NETWORK_ID = pattern(
    rf"projects/{PROJECT}/global/networks/{NAME}",
    "projects/P/global/networks/N, the full id",
    "copy it from `gcloud compute networks list --uri`, from `projects/` on",
)
SUBNET_ID = pattern(
    rf"projects/{PROJECT}/regions/[a-z0-9-]+/subnetworks/{NAME}",
    "projects/P/regions/R/subnetworks/S",
    "copy it from `gcloud compute networks subnets list --uri`, from `projects/` on",
)
TOPOLOGY = pattern(r"[1-9]\d?x[1-9]\d?", "a grid such as 4x4", "write rows x columns")
SNAPSHOT = pattern(
    rf"(projects/{PROJECT}/global/snapshots/)?{NAME}",
    "a snapshot's name, or projects/P/global/snapshots/S",
    "copy the name from `gcloud compute snapshots list`",
)
SUBNET_RANGE = Rule(
    lambda value: is_range_of(value, *PRIVATE),
    _RANGE,
    "write e.g. 10.64.0.0/20",
)
PODS_RANGE = Rule(
    lambda value: is_range_of(value, *PRIVATE, *OF_PODS),
    f"{_RANGE}; or one of 100.64.0.0/10 or 240.0.0.0/4",
    "write e.g. 192.168.64.0/20 or 100.64.0.0/16",
)
SOURCE_RANGE = Rule(
    lambda value: is_network(value) and ipaddress.IPv4Network(value).prefixlen >= 8,
    "an IPv4 range without host bits, /8 or smaller; SSH is never open to the world",
    "write 35.235.240.0/20 (Identity-Aware Proxy) or your office's range",
)
LABEL_KEY = pattern(
    r"(?!goog-)[a-z][-_a-z0-9]{0,62}",
    "1 to 63 lowercase letters, digits, - and _, first a letter, not starting with goog-",
    "rename the label",
)
LABEL_VALUE = pattern(
    r"[-_a-z0-9]{1,63}",
    "1 to 63 lowercase letters, digits, - and _ (an empty one is a diff at every up)",
    "change the value, or remove the label",
)
REGION = pattern(PLACE, "one region, such as us-east5 (no multi-region, no zone)", "write the zones' region")
ZONE = pattern(f"{PLACE}-[a-z0-9]+", "a zone, such as us-east5-b", "write a zone, not a region")
SHA256 = pattern("[0-9a-f]{64}", "64 lowercase hex digits", "run `tpu publish`, which writes it")
SSH = Rule(
    lambda value: is_ssh(value, "node", "worker"),
    "a program and arguments with {node}, {worker}, at the end {command}, and where needed {project}, {zone}"
    " and {login} (your name by OS Login)",
    "write e.g. ssh {node}-w{worker} {command}",
)
SSH_LOGIN = Rule(
    lambda value: is_ssh(value, "node"),
    "a program and arguments with {node}, at the end {command}, and where needed {project}, {zone} and"
    " {login} (your name by OS Login)",
    "write e.g. ssh {node} {command}",
)
COMMAND = Rule(
    commands.can_start,
    f"a command of the workload ({', '.join(commands.COMMANDS)}), {', '.join(commands.PROGRAMS)} or a "
    "program's path (/… or ./…), with arguments; without control characters or open quotes; at most "
    f"{commands.MAX_CHARACTERS} characters",
    "write e.g. train tiny.toml, python train.py or ./start.sh; variables are env beside it",
)
FOLDERS = (
    "barrier", "boot", "bundles", "compilation-cache", "data", "extractions", "heartbeats", "runs",
    "tokens",
)  # fmt: skip
"""Folders of the checkpoint bucket that this program writes (docs/internals/architecture.md)."""
BUCKET_FOLDER = pattern(
    rf"(?!({'|'.join(FOLDERS)})(/|$))(?!.*//)(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{{0,198}}[A-Za-z0-9_-]",
    f"a path in the bucket, of letters, digits and . _ / -, not in a folder of ours: {', '.join(FOLDERS)}",
    "write e.g. jobs/mine",
)
FOLDER = pattern(
    r"(?!/)(?!.*\.\.)(?!.*://)[^\0\n\[\]{}\"]{1,200}",
    "a path below the project's own folder",
    "put it there, and write e.g. training",
)
