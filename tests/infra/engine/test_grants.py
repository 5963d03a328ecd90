"""PL9: who may do what, over all layers with everything on: account, role, where, under which condition.

`python -m tests.infra.engine.test_grants` writes the table again; each line that changes is somebody's right.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from infra.engine.registry import layers
from tests.infra.declared import LAYERS, declared
from tests.infra.recording import Registration

TABLE = Path(__file__).with_name("grants.txt")
_ON = {
    "artifactregistry/repositoryIamMember": "repository",
    "cloudrunv2/serviceIamMember": "name",
    "kms/cryptoKeyIAMMember": "cryptoKeyId",
    "projects/iAMMember": "project",
    "secretmanager/secretIamMember": "secretId",
    "pubsub/topicIAMMember": "topic",
    "serviceaccount/iAMMember": "serviceAccountId",
    "storage/bucketIAMMember": "bucket",
}


def table() -> str:
    """A line for each grant, sorted."""
    return "".join(f"{line}\n" for layer in LAYERS for line in sorted(lines(layer)))


def lines(layer: str) -> Iterator[str]:
    for resource in declared(layer).resources:
        if re.fullmatch("gcp:.*IAM(Member|Binding|Policy)", resource.type, re.IGNORECASE):
            yield f"{layer}: {resource.inputs['member']} {resource.inputs['role']} on {place(resource)}"


def place(grant: Registration) -> str:
    """Return the kind and name of the resource that it is on, and the title of its condition, if any."""
    kind = grant.type.split(":")[1]
    name = str(grant.inputs[_ON[kind]]).rpartition("/")[2]
    only = (grant.inputs.get("condition") or {}).get("title")
    return f"{kind.partition('/')[0]} {name}" + (f", {only}" if only else "")


def test_every_grant_is_in_the_table_and_every_line_is_granted() -> None:
    assert len(LAYERS) == len(layers())
    made = table()
    assert made.count("\n") >= 90
    assert made == TABLE.read_text(encoding="utf-8"), (
        "python -m tests.infra.engine.test_grants; then read the diff"
    )


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
