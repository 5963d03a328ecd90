"""Starters of runs: events of the raw bucket, and a schedule for submissions whose event was lost.

A new project has no service agents, and their roles take minutes to apply. Google names that in its refusal,
and the layer names it to `tpu up`, which retries: a wait of fixed length is often too short, and Pulumi
3.220 calls no hook of a resource that wasn't created, https://github.com/pulumi/pulumi/issues/23344.
"""

from __future__ import annotations

import base64
import json

import pulumi
import pulumi_gcp as gcp

from infra.layers.pipeline import access, paths
from infra.layers.pipeline.accounts import PipelineAccounts
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings


class Triggers(pulumi.ComponentResource):
    """The event and the schedule, as far as the settings want them."""

    event: gcp.eventarc.Trigger | None = None
    job: gcp.cloudscheduler.Job | None = None

    def __init__(
        self,
        settings: Settings,
        accounts: PipelineAccounts,
        workflow: gcp.workflows.Workflow,
        provider: pulumi.ProviderResource,
        opts: pulumi.ResourceOptions,
    ):
        name, desired = paths.name(settings), settings[PipelineSettings]
        super().__init__("tpu:pipeline:Triggers", name, None, opts)
        child = pulumi.ResourceOptions(
            parent=self, depends_on=[*accounts.all, workflow], hooks=accounts.acting
        )
        if desired.on_submit:
            agents = self._agents(settings, provider, pulumi.ResourceOptions(parent=self))
            self.event = gcp.eventarc.Trigger(
                name,
                name=name,
                location=paths.region(settings),  # the bucket's
                matching_criterias=[
                    {"attribute": "type", "value": "google.cloud.storage.object.v1.finalized"},
                    {"attribute": "bucket", "value": desired.raw_bucket_name},
                ],
                destination={"workflow": workflow.id},
                service_account=paths.account(settings, paths.TRIGGER),
                opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=agents)),
            )
        if desired.schedule:
            url = f"https://workflowexecutions.googleapis.com/v1/{paths.workflow_id(settings)}/executions"
            body = json.dumps({"argument": json.dumps({"sweep": True})})
            self.job = gcp.cloudscheduler.Job(
                name,
                name=name,
                region=paths.region(settings),
                description="Starts runs of what was submitted and has none",
                schedule=desired.schedule,
                time_zone=desired.time_zone,
                attempt_deadline="180s",
                retry_config={"retry_count": 3},
                http_target={
                    "uri": url,
                    "http_method": "POST",
                    "body": base64.b64encode(body.encode()).decode(),
                    "headers": {"Content-Type": "application/json"},
                    "oauth_token": {"service_account_email": paths.account(settings, paths.TRIGGER)},
                },
                opts=child,
            )
        self.register_outputs({})

    @staticmethod
    def _agents(
        settings: Settings, provider: pulumi.ProviderResource, opts: pulumi.ResourceOptions
    ) -> list[pulumi.Resource]:
        """Google's own accounts that carry the events, and the roles that they need."""
        number = gcp.organizations.get_project_output(
            project_id=settings.project, opts=pulumi.InvokeOutputOptions(provider=provider)
        ).number
        eventarc = gcp.projects.ServiceIdentity(
            "eventarc-agent", project=settings.project, service="eventarc.googleapis.com", opts=opts
        )
        after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[eventarc]))
        agents = {
            access.EVENTARC_AGENT_ROLE: ("gcp-sa-eventarc", after),
            access.STORAGE_AGENT_ROLE: ("gs-project-accounts", opts),
        }
        grants = [
            gcp.projects.IAMMember(
                f"agent-{role.rpartition('/')[2]}",
                project=settings.project,
                role=role,
                member=pulumi.Output.concat(
                    "serviceAccount:service-", number, f"@{domain}.iam.gserviceaccount.com"
                ),
                opts=options,
            )
            for role, (domain, options) in agents.items()
        ]
        return [eventarc, *grants]
