"""Google services that the layers call."""

import asyncio

import pulumi
import pulumi_gcp as gcp

from infra.core.environment import required_services
from infra.google.enabled import wait_until_it_answers
from infra.settings.schema import Settings


class ProjectServices(pulumi.ComponentResource):
    """Enabled services; never disabled, since others may use them."""

    services: list[gcp.projects.Service]

    def __init__(self, settings: Settings, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:ProjectServices", "services", None, opts)

        async def wait(created: pulumi.ResourceHookArgs) -> None:
            await asyncio.to_thread(wait_until_it_answers, created.name, settings.project)

        hooks = pulumi.ResourceHookBinding(after_create=[pulumi.ResourceHook("services-answer", wait)])
        self.services = [
            gcp.projects.Service(
                service,
                service=service,
                disable_on_destroy=False,
                disable_dependent_services=False,
                opts=pulumi.ResourceOptions(parent=self, hooks=hooks),
            )
            for service in required_services(settings)
        ]
        self.register_outputs({})
