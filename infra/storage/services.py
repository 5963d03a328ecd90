"""The Google services that the layers call."""

import pulumi
import pulumi_gcp as gcp

from infra import names
from infra.settings import Settings

SERVICES = (
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "storage.googleapis.com",
    "tpu.googleapis.com",
)
KEYS = "cloudkms.googleapis.com"
IAP = "iap.googleapis.com"


class ProjectServices(pulumi.ComponentResource):
    """Switches services on and never off: others may use them too."""

    services: list[gcp.projects.Service]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:ProjectServices", "services", None, opts)
        wanted = set(SERVICES)
        if settings.storage.kms_key or settings.storage.state_key_ring:
            wanted.add(KEYS)
        if names.IAP_RANGE in settings.network.ssh_source_ranges:
            wanted.add(IAP)
        self.services = [
            gcp.projects.Service(
                service,
                service=service,
                disable_on_destroy=False,
                disable_dependent_services=False,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for service in sorted(wanted)
        ]
        self.register_outputs({})
