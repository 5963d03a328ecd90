"""Where the stand-in knowingly differs from the official provider 9.35.0, each with its reason.

The tests that replay recordings allow these and nothing else; docs/standin.md shows them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeclaredDifference:
    """One difference: `seen` says whether replaying a recording shows it, and which."""

    what: str
    why: str
    seen: str = ""


DECLARED: tuple[DeclaredDifference, ...] = (
    DeclaredDifference(
        "Operations are polled every 0.5 s, policies re-read 0.5 s apart (official: 10 s, 1 s).",
        "A rehearsal's operations take seconds. The requests are the same; the answers decide how many.",
    ),
    DeclaredDifference(
        "Changes that arrive together are collected for 0.3 s before they are sent (official: 3 s).",
        "As above; what is collected, and the request it becomes, is the same.",
    ),
    DeclaredDifference(
        "After a host's first answer every connection to it counts as used before: a GET whose connection"
        " ends without an answer is then sent once more, at once (official: by the connection it took).",
        "Which connection of its pool Go takes can't be told from outside.",
    ),
    DeclaredDifference(
        "Elements of sets go out and come back in the program's order: `allowed`, `serviceIds` and others.",
        "The official order comes from Terraform's hashes and means nothing to the API.",
        "compute.Firewall.internal, eventarc.Trigger, projects.Service",
    ),
    DeclaredDifference(
        "`nextRotationTime` of a key is another moment.",
        "It is the present plus the period.",
        "kms.CryptoKey",
    ),
    DeclaredDifference(
        "The name of an instance template that is made of a prefix ends in another moment.",
        "It is the present.",
        "compute.InstanceTemplate",
    ),
    DeclaredDifference(
        "A change of an instance's other properties than its metadata and labels replaces it.",
        "The official provider stops it, or sends one of a dozen other requests; these two were recorded.",
    ),
    DeclaredDifference(
        "The boundary and the whitespace of a multipart upload differ.",
        "Chance, and Go's JSON encoder; the two parts are compared as what they hold.",
        "storage.BucketObject",
    ),
    DeclaredDifference(
        "Every bucket's project number is looked up once, when the bucket is made.",
        "Recorded once for each of three buckets without a project of their own; the look-ups can't be"
        " attributed, and a bucket with one wasn't recorded.",
        "storage.Bucket, storage.Bucket.hns, storage.Bucket.minimal",
    ),
    DeclaredDifference(
        "A refresh of a NAT reads its router once.",
        "The recording has a second such read, which is the router's own refresh in the same program.",
        "compute.RouterNat",
    ),
    DeclaredDifference(
        "After an update the bucket's output `updated` is the new time.",
        "The official provider keeps the old one until the next refresh; no program should depend on that.",
        "storage.Bucket",
    ),
    DeclaredDifference(
        "No request when the provider is configured.",
        "The official provider asks who it is, and for Compute Engine's regions unless told not to.",
    ),
    DeclaredDifference(
        "A disk's image family is looked up when the disk is made, not at every `up`.",
        "The official provider resolves it in every preview; no stack here makes disks from images.",
    ),
    DeclaredDifference(
        "A smaller disk or a subnet range that isn't an expansion is sent and refused by the API.",
        "The official provider turns both into replacements, which no stack here may want.",
    ),
    DeclaredDifference(
        "Outputs that are null, empty, zero or false in the recordings may be another of these.",
        "Terraform's state distinguishes them by how a value came about; programs can't tell.",
        "all",
    ),
    DeclaredDifference(
        "A property never given, in a block that the program gives, is Google's: its change"
        " behind Pulumi's back is no difference.",
        "Neither the SDK nor the discovery documents say which nested properties Google fills in.",
    ),
    DeclaredDifference(
        "Outputs that 9.35.0 had and the installed SDK hasn't are not given: a network's `numericId`.",
        "No program of that SDK can read them.",
        "compute.Network",
    ),
    DeclaredDifference(
        "The forms of names, members and domains, and which of several properties must be there, are left to"
        " the API; possible values are checked where the SDK's text lists them.",
        "The recording of what a preview refuses has the sentences and no inputs; the SDK has no such rules.",
    ),
    DeclaredDifference(
        "Recorded from 9.35.0, served as the plugin of the installed SDK, a newer major version.",
        "Nothing newer could be recorded. Properties that the tables lack are refused.",
    ),
    DeclaredDifference(
        "Updates that weren't recorded follow the provider's published source: a disk's access mode and IOPS,"
        " a subnet's range, private access, stack type and secondary ranges, a bucket's settings but labels.",
        "The recordings hold one update per type. The emulated cloud checks names and shapes of them all.",
    ),
    DeclaredDifference(
        "`pulumi import` takes the resource into the state but writes no program for it.",
        "For that the CLI wants the plugin's schema, which only the official one has.",
    ),
    DeclaredDifference(
        "After an import the next `up` changes nothing; the official provider may send labels once more.",
        "No import was recorded. By its source it takes only the program's labels into the state.",
    ),
    DeclaredDifference(
        "A BucketObject whose properties changed is uploaded anew; the official one patches some of them.",
        "Only a change of content was recorded.",
    ),
)


# Types that are recorded, and whose behaviour is too far from plain: the stand-in refuses them.
NOT_CARRIED_OUT: dict[str, str] = {
    "gcp:container/cluster:Cluster": "its body isn't the properties', each change is a request",
    "gcp:container/nodePool:NodePool": "its node count is read from the zones' instance groups",
}


def markdown() -> str:
    """The table for docs/standin.md."""
    rows = [f"| {d.what} | {d.why} | {d.seen or '–'} |" for d in DECLARED]
    return "\n".join(["| difference | reason | recordings that show it |", "| --- | --- | --- |", *rows])
