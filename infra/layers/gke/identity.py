"""Two identities: what nodes run as, and what pods may do."""

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_gcp as gcp

from infra.core.account import Account, short
from infra.core.secrets import ACCESSOR
from infra.google.acting import once_it_may_act
from infra.google.role import only
from infra.layers.gke.pods import PRINCIPALS, identity, member_of
from infra.layers.gke.settings import GkeSettings
from infra.layers.storage.names import JOBS, jobs_folder
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

# As the hosts of slices have them: objects, and the bucket itself, which gcsfs asks for.
BUCKET_ROLES = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")


def _own_jobs(settings: Settings, namespace: str) -> gcp.storage.BucketIAMMemberConditionArgsDict:
    """Return a condition: of the folder with what jobs save, only the part of the namespace.

    gcsfuse makes an object for the folder itself, which may be anybody's, and looks for a file where the
    namespace's folder is: refused, it would make no folder.
    """
    bucket = settings[StorageSettings].bucket_name
    own, folder = only(jobs_folder(namespace), bucket), only(f"{JOBS}/", bucket)
    looked_up = (f"{JOBS}/", jobs_folder(namespace).rstrip("/"))
    themselves = " || ".join(
        f'resource.name == "projects/_/buckets/{bucket}/objects/{name}"' for name in looked_up
    )
    return {"title": "no other team's jobs", "expression": f"!{folder} || {own} || {themselves}"}


class NodeIdentity(Account):
    """The account that all nodes run as, its roles, and who may create nodes that run as it.

    `acting`: what the cluster and its pools wait for.
    """

    acting: pulumi.ResourceHookBinding | None

    def __init__(self, settings: Settings, applying: str | None, opts: pulumi.ResourceOptions | None = None):
        """Declare the account; `applying`: the account of builds, which creates nodes, too."""
        desired = settings[GkeSettings]
        users = list(dict.fromkeys([*desired.node_account_users, *filter(None, [applying])]))
        title, about = "GKE nodes", "Pulls images and writes logs; pods never see its token"
        super().__init__("tpu:gke:NodeIdentity", settings, desired.node_account_id, title, about, users, opts)
        for role in desired.node_roles:
            self.project_role(role)
        self.acting = once_it_may_act(settings.project, [self.email], users)


class WorkloadIdentity(pulumi.ComponentResource):
    """Grants to pods of the namespaces, by their Kubernetes accounts.

    They are granted roles directly or, with `gke:workloadAccountId`, may act as a Google account
    that has the roles.
    https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity
    """

    account: gcp.serviceaccount.Account | None = None

    def __init__(
        self,
        settings: Settings,
        project_number: pulumi.Input[str],
        buckets: Mapping[str, pulumi.Input[str]],
        made: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ):
        """`buckets`: that pods read and write, by what their grants are called.

        `made`: the cluster, unless it was there before; the first one of a project makes its workload pool.
        """
        desired = settings[GkeSettings]
        super().__init__("tpu:gke:WorkloadIdentity", "workload", None, opts)
        after = pulumi.ResourceOptions(parent=self, depends_on=made)
        members: dict[str, pulumi.Input[str]] = {}
        if id_ := desired.workload_account_id:
            self.account = self._impersonated(settings, id_, after)
            members[id_] = member_of(settings, "")
            after = pulumi.ResourceOptions(parent=self, depends_on=[*made, self.account])
        else:
            for namespace in desired.namespaces:
                members[namespace] = pulumi.Output.concat(
                    PRINCIPALS, project_number, member_of(settings, namespace)
                )
        for who, member in members.items():
            for which, bucket in buckets.items():
                for role in BUCKET_ROLES:
                    limited = self.account is None and (which, role) == ("checkpoints", BUCKET_ROLES[0])
                    gcp.storage.BucketIAMMember(
                        f"{who}-{which}-{short(role)}",
                        bucket=bucket,
                        role=role,
                        member=member,
                        condition=_own_jobs(settings, who) if limited else None,
                        opts=after,
                    )
            for secret in settings[StorageSettings].secrets:
                gcp.secretmanager.SecretIamMember(
                    f"{who}-{secret}", project=settings.project, secret_id=secret, role=ACCESSOR,
                    member=member, opts=after,
                )  # fmt: skip
            for role in desired.workload_roles:
                gcp.projects.IAMMember(
                    f"{who}-{short(role)}", project=settings.project, role=role, member=member, opts=after
                )
        self.register_outputs({})

    def _impersonated(
        self, settings: Settings, id_: str, after: pulumi.ResourceOptions
    ) -> gcp.serviceaccount.Account:
        desired = settings[GkeSettings]
        account = gcp.serviceaccount.Account(
            id_,
            account_id=id_,
            display_name="Training jobs on GKE",
            description="What pods of the training namespaces impersonate",
            opts=pulumi.ResourceOptions(parent=self),
        )
        for namespace in desired.namespaces:
            gcp.serviceaccount.IAMMember(
                f"{id_}-{namespace}",
                service_account_id=account.name,
                role="roles/iam.workloadIdentityUser",
                member=f"serviceAccount:{identity(settings, namespace)}",
                opts=after,
            )
        return account
