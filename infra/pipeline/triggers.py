"""What starts runs: an object in the raw bucket, and a schedule for what no event came for.

A new project has no service agents, and their roles take minutes to count. Google names that in its refusal,
so the trigger is asked for again while it does, instead of a wait of fixed length that is often too short.
https://cloud.google.com/eventarc/docs/troubleshooting. Pulumi's engine calls that hook in versions that have
https://github.com/pulumi/pulumi/issues/23344 mended; with the others, `up` is typed again.
"""

from __future__ import annotations

import base64
import json
import re
import time

import pulumi
import pulumi_gcp as gcp

from infra.pipeline import access, places
from infra.pipeline.accounts import PipelineAccounts
from infra.pipeline.settings import PipelineSettings
from infra.settings import Settings

PATIENCE_S, PAUSE_S = 900.0, 5.0
_NOT_YET = re.compile(r"(?i)service agent|service account for cloud storage|pubsub\.(topics\.)?publish")


class AgentPatience:
    """Says whether to ask again: while the refusal speaks of a service agent, for a quarter of an hour."""

    def __init__(self, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S):
        self._end_s: float | None = None
        self._patience_s, self._pause_s = patience_s, pause_s

    def __call__(self, args: pulumi.ErrorHookArgs) -> bool:
        """For `on_error` of a resource."""
        if args.failed_operation != "create" or not args.errors or not _NOT_YET.search(args.errors[0]):
            return False
        now_s = time.monotonic()
        self._end_s = self._end_s or now_s + self._patience_s
        if now_s >= self._end_s:
            return False
        pulumi.log.info(f"{args.name}: the service agent's role doesn't count yet; asking again")
        time.sleep(self._pause_s)
        return True


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
        name, desired = places.name(settings), settings[PipelineSettings]
        super().__init__("tpu:pipeline:Triggers", name, None, opts)
        ours = pulumi.ResourceOptions(
            parent=self, depends_on=[*accounts.all, workflow], hooks=accounts.acting
        )
        if desired.on_submit:
            agents = self._agents(settings, provider, pulumi.ResourceOptions(parent=self))
            asked_again = pulumi.ResourceHookBinding(
                on_error=[pulumi.ErrorHook("service-agent", AgentPatience())]
            )
            self.event = gcp.eventarc.Trigger(
                name,
                name=name,
                location=places.region(settings),  # the bucket's
                matching_criterias=[
                    {"attribute": "type", "value": "google.cloud.storage.object.v1.finalized"},
                    {"attribute": "bucket", "value": desired.raw_bucket_name},
                ],
                destination={"workflow": workflow.id},
                service_account=places.account(settings, places.TRIGGER),
                opts=pulumi.ResourceOptions.merge(
                    ours, pulumi.ResourceOptions(depends_on=agents, hooks=asked_again)
                ),
            )
        if desired.schedule:
            url = f"https://workflowexecutions.googleapis.com/v1/{places.workflow_id(settings)}/executions"
            body = json.dumps({"argument": json.dumps({"sweep": True})})
            self.job = gcp.cloudscheduler.Job(
                name,
                name=name,
                region=places.region(settings),
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
                    "oauth_token": {"service_account_email": places.account(settings, places.TRIGGER)},
                },
                opts=ours,
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
