"""Callers of the function: events of the raw bucket, and a job that sweeps, since an event may be lost.

Both count as internal at the service's default URL: https://cloud.google.com/run/docs/securing/ingress.
Pub/Sub pushes an event again unless it is answered in time (10 s unless set, 600 s at most); Cloud Scheduler
begins no call of a job before the last one has ended:
https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.subscriptions,
https://cloud.google.com/scheduler/docs/reference/rest/v1/projects.locations.jobs.

A new project has no service agents: asking for Eventarc's makes it, and reading the address of Cloud
Storage's (google_facts/agents.toml). Their roles take minutes to apply. Google names that in its refusal, and
the layer names it to `tpu up`, which retries: a wait of fixed length is often too short, and Pulumi 3.220
calls no hook of a resource that wasn't created, https://github.com/pulumi/pulumi/issues/23344.
"""

from __future__ import annotations

import base64
import json

import pulumi
import pulumi_gcp as gcp

from google_facts.agents import AGENTS
from infra.layers.pipeline import access, paths
from infra.layers.pipeline.accounts import PipelineAccounts
from infra.layers.pipeline.settings import PipelineSettings
from infra.settings.schema import Settings

_DEADLINE_S = 1800  # the longest that a job waits for an answer


class Triggers(pulumi.ComponentResource):
    """The event, unless `pipeline:onSubmit` is off, and the sweep."""

    event: gcp.eventarc.Trigger | None = None
    sweep: gcp.cloudscheduler.Job

    def __init__(
        self,
        settings: Settings,
        accounts: PipelineAccounts,
        function: pulumi.Resource,
        url: pulumi.Output[str],
        number: pulumi.Output[str],
        storage_agent: pulumi.Output[str],
        opts: pulumi.ResourceOptions,
    ):
        """Declare them.

        Args:
            settings: of the environment.
            accounts: of the pipeline.
            function: what is called.
            url: of the function.
            number: of the project.
            storage_agent: address of Cloud Storage's service agent.
            opts: of the component.
        """
        name, desired = paths.name(settings), settings[PipelineSettings]
        super().__init__("tpu:pipeline:Triggers", name, None, opts)
        child = pulumi.ResourceOptions(
            parent=self, depends_on=[*accounts.all, function], hooks=accounts.acting
        )
        caller = paths.account(settings, paths.TRIGGER)
        if desired.on_submit:
            agents = self._agents(settings, number, storage_agent, pulumi.ResourceOptions(parent=self))
            self.event = gcp.eventarc.Trigger(
                name,
                name=name,
                location=paths.region(settings),  # the bucket's
                matching_criterias=[
                    {"attribute": "type", "value": "google.cloud.storage.object.v1.finalized"},
                    {"attribute": "bucket", "value": desired.raw_bucket_name},
                ],
                destination={"cloud_run_service": {"service": name, "region": paths.region(settings)}},
                service_account=caller,
                opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=agents)),
            )
        self.sweep = gcp.cloudscheduler.Job(
            name,
            name=name,
            region=paths.sweep_region(settings),
            description="Lets the function look at submissions and runs",
            schedule=f"*/{desired.sweep_minutes} * * * *",
            time_zone="Etc/UTC",
            attempt_deadline=f"{_DEADLINE_S}s",
            retry_config={"retry_count": 0},  # the next sweep does the same
            http_target={
                "uri": url,
                "http_method": "POST",
                "body": base64.b64encode(json.dumps({"sweep": True}).encode()).decode(),
                "headers": {"Content-Type": "application/json"},
                "oidc_token": {"service_account_email": caller, "audience": url},
            },
            opts=child,
        )
        self.register_outputs({})

    @staticmethod
    def _agents(
        settings: Settings,
        number: pulumi.Output[str],
        storage_agent: pulumi.Output[str],
        opts: pulumi.ResourceOptions,
    ) -> list[pulumi.Resource]:
        """Google's own accounts that carry the events, and the roles that they need."""
        eventarc = gcp.projects.ServiceIdentity(
            "eventarc-agent", project=settings.project, service="eventarc.googleapis.com", opts=opts
        )
        after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[eventarc]))
        agents = {  # Eventarc's address is known to a preview by the number alone
            access.EVENTARC_AGENT_ROLE: number.apply(
                lambda known: f"serviceAccount:{AGENTS['eventarc'].email(known)}"
            ),
            access.STORAGE_AGENT_ROLE: pulumi.Output.concat("serviceAccount:", storage_agent),
        }
        grants = [
            gcp.projects.IAMMember(
                f"agent-{role.rpartition('/')[2]}",
                project=settings.project,
                role=role,
                member=member,
                opts=after,
            )
            for role, member in agents.items()
        ]
        return [eventarc, *grants]
