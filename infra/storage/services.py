"""The Google services that the layers call."""

import pulumi
import pulumi_gcp as gcp

from infra import layers
from infra.settings import Settings


class ProjectServices(pulumi.ComponentResource):
    """Switches services on and never off: others may use them too."""

    services: list[gcp.projects.Service]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:ProjectServices", "services", None, opts)
        self.services = [
            gcp.projects.Service(
                service,
                service=service,
                disable_on_destroy=False,
                disable_dependent_services=False,
                opts=pulumi.ResourceOptions(parent=self),
            )
            for service in layers.services(settings)
        ]
        self.register_outputs({})
