"""Google's host names that exist in a world, and the addresses at which the front door answers.

A hosts file has no wildcards, so every name that a client in the world may look up is listed. The
addresses are Google's own (https://cloud.google.com/vpc/docs/configure-private-google-access).
"""

from __future__ import annotations

from rehearsal.cloud.services.tpu.catalog import ZONES

FRONT_DOOR = "199.36.153.8"
METADATA = "169.254.169.254"

_REGIONS = sorted({zone.rpartition("-")[0] for zone in ZONES})
# <name>.googleapis.com
_APIS = (
    *("accounts", "aiplatform", "artifactregistry", "billingbudgets", "cloudbilling"),
    *("cloudbuild", "cloudfunctions"),
    *("cloudkms", "cloudresourcemanager", "cloudscheduler", "compute", "container", "dataproc", "eventarc"),
    *("file", "iam", "iamcredentials", "logging", "monitoring", "oauth2", "openidconnect", "oslogin"),
    *("private", "pubsub", "run", "secretmanager", "serviceusage", "storage", "sts", "tpu"),
    "www",
    *(f"{region}-aiplatform" for region in _REGIONS),
)
_OTHERS = ("accounts.google.com",)
_REGISTRIES = tuple(f"{region}-docker.pkg.dev" for region in _REGIONS)
# Where clusters' DNS endpoints are: gke-….us-east5.gke.goog, which lead to their control planes.
_GKE = sorted({place for zone in ZONES for place in (zone, zone.rpartition("-")[0])})
METADATA_NAMES = ("metadata.google.internal", "metadata")

# What the front door's certificate covers: also regional names such as us-east5-aiplatform.googleapis.com.
CERTIFICATE_NAMES = ["*.googleapis.com", "*.storage.googleapis.com", "*.google.com", "*.pkg.dev", *_OTHERS]
CERTIFICATE_NAMES += [f"*.{place}.gke.goog" for place in _GKE]
# Of Run services and functions, whose hosts Google's own services look up.
CERTIFICATE_NAMES += ["*.cloudfunctions.net", *(f"*.{region}.run.app" for region in _REGIONS)]


def served() -> list[str]:
    """Every name that the front door answers to on port 443."""
    return [*(f"{api}.googleapis.com" for api in _APIS), *_OTHERS, *_REGISTRIES]


def hosts_file() -> str:
    """Return the text of /etc/hosts in the world."""
    lines = [
        "127.0.0.1 localhost rehearsal",
        "::1 localhost ip6-localhost",
        f"{METADATA} {' '.join(METADATA_NAMES)}",
        *(f"{FRONT_DOOR} {name}" for name in served()),
    ]
    return "\n".join(lines) + "\n"
