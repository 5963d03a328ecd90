"""Google's words, as users of the TPU API have met them, mean what they mean."""

import pytest

from infra.engine.roles import with_roles
from infra.google.failures import FOR_PEOPLE, Kind, classify

SAID = [
    (
        'Error waiting to create Vm: Error waiting for Creating Vm: Error code 8, message: There is no more'
        ' capacity in the zone "us-central1-c"; you can try in another zone where Cloud TPU Nodes are',
        Kind.STOCK_OUT,
    ),
    ("Error code 8, message: Insufficient reserved capacity. Contact customer support", Kind.STOCK_OUT),
    ("The zone 'z' does not have resources available to fulfill the request", Kind.STOCK_OUT),
    (
        "googleapi: Error 429: Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded."
        " Limit: 0 in region us-east5.",
        Kind.QUOTA,
    ),
    (
        "googleapi: Error 429: Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in"
        " zone us-east5-b., rateLimitExceeded",
        Kind.QUOTA,
    ),
    ("Quota 'TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI' exhausted. Limit 10000", Kind.QUOTA),
    (
        "Error code 9, message: failed precondition: due to quota restrictions, cannot run builds in this"
        " region, see https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects",
        Kind.QUOTA,
    ),
    (
        "googleapi: Error 429: Quota exceeded for quota metric 'Maximum number of CreateNode requests' and"
        " limit 'Maximum number of CreateNode requests per minute' of service 'tpu.googleapis.com'",
        Kind.RATE,
    ),
    ("googleapi: Error 403: Permission 'tpu.nodes.create' denied on resource", Kind.PERMISSION),
    (
        "googleapi: Error 403: Cloud TPU API has not been used in project 1 before or it is disabled.",
        Kind.API_OFF,
    ),
    (
        "googleapi: Error 403: Your application is authenticating by using local Application Default"
        " Credentials. The tpu.googleapis.com API requires a quota project, which is not set by default."
        " [SERVICE_DISABLED]",
        Kind.LOGIN,
    ),
    (
        "googleapi: Error 412: Request violates constraint 'constraints/storage.uniformBucketLevelAccess',"
        " conditionNotMet",
        Kind.POLICY,
    ),
    (
        "googleapi: Error 403: Request is disallowed by organization's constraints/gcp.restrictServiceUsage"
        " constraint for 'projects/1' attempting to use service 'tpu.googleapis.com'.",
        Kind.POLICY,
    ),
    ("googleapi: Error 400: Service account creation is not allowed on this project.", Kind.POLICY),
    ("Error code 16, message: Request had invalid authentication credentials", Kind.LOGIN),
    ("oauth2: \"invalid_grant\" \"Bad Request\"", Kind.LOGIN),
    ("googleapi: Error 409: Resource 'projects/p/locations/z/nodes/n' already exists", Kind.EXISTS),
    ("googleapi: Error 409: unable to queue the operation", Kind.TRANSIENT),
    ("Error code 10, message: The operation was aborted", Kind.UNKNOWN),
    ("Error code 9, message: Cloud TPU is not in a state for it", Kind.UNKNOWN),
    ("googleapi: Error 404: Resource 'projects/p/locations/z/nodes/n' was not found", Kind.MISSING),
    ("googleapi: Error 400: The requested accelerator configuration could not be found", Kind.INVALID),
    ("Error code 13, message: an internal error has occurred", Kind.TRANSIENT),
    ("googleapi: Error 503: The service is currently unavailable.", Kind.TRANSIENT),
    ("Error code 14, message: unavailable", Kind.TRANSIENT),
    ("read tcp 10.0.0.1:1->10.0.0.2:443: read: connection reset by peer", Kind.UNKNOWN),
    ("timeout while waiting for state to become 'done: true'", Kind.UNKNOWN),
    ("", Kind.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("message", "kind"), SAID, ids=[kind for _, kind in SAID])
def test_what_was_said_is_told_apart(message: str, kind: Kind) -> None:
    result = classify(message)
    assert result.kind is kind
    assert result.fix


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ("googleapi: Error 403: Permission 'tpu.nodes.create' denied on resource", "roles/tpu.admin"),
        (
            "googleapi: Error 403: me@example.com does not have storage.objects.list access to the Google"
            " Cloud Storage bucket.",
            "roles/storage.objectUser",
        ),
        (
            "googleapi: Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account",
            "roles/iam.serviceAccountUser",
        ),
        (
            "googleapi: Error 403: Required 'compute.firewalls.create' permission for 'projects/p'",
            "roles/compute.securityAdmin",
        ),
        ("Required 'compute.projects.get' permission for 'projects/p'", "roles/compute.osAdminLogin"),
        ("Error while connecting [4033: 'not authorized'].", "roles/iap.tunnelResourceAccessor"),
        ("ada@example.com: Permission denied (publickey).", "roles/compute.osAdminLogin"),
        (
            "Error 403: Grant the caller a custom role with the serviceusage.services.use permission",
            "roles/serviceusage.serviceUsageConsumer",
        ),
        (
            "Error 403: Permission 'iam.serviceAccounts.actAs' denied",
            "roles/iam.serviceAccountUser, which holds iam.serviceAccounts.actAs, on that service account, "
            "by the setting that `tpu infra roles ENV` prints",
        ),
        ("Error 403: Permission 'compute.disks.use' denied", "roles/compute.instanceAdmin.v1, which holds"),
        ("Error 403: Permission 'compute.disks.fold' denied", "a role that holds compute.disks.fold"),
        ("googleapi: Error 403: Forbidden", "a role that holds the permission"),
    ],
)  # fmt: skip
def test_a_permission_names_the_role(message: str, role: str) -> None:
    result = classify(message)
    assert result.kind is Kind.PERMISSION
    assert f"grant your account {role}" in with_roles(result.fix)


ENABLE = "gcloud services enable {} --project=PROJECT"


@pytest.mark.parametrize(
    ("message", "kind", "fixes"),
    [
        (
            "googleapi: Error 403: Cloud TPU API has not been used in project 1 before or it is disabled."
            " Enable it by visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1",
            Kind.API_OFF,
            ["tpu up ENV storage", ENABLE.format("tpu.googleapis.com")],
        ),
        (
            "googleapi: Error 403: Permission denied to enable service [tpu.googleapis.com]\n"
            "Permission denied to enable service [iam.googleapis.com]\n"
            'Details: [{"domain": "serviceusage.googleapis.com", "reason": "AUTH_PERMISSION_DENIED"}]',
            Kind.PERMISSION,
            [
                f"an owner runs: {ENABLE.format('tpu.googleapis.com iam.googleapis.com')}",
                "roles/serviceusage.serviceUsageAdmin, which holds serviceusage.services.enable",
            ],
        ),
        (
            "googleapi: Error 403: Request is disallowed by organization's"
            " constraints/gcp.restrictServiceUsage constraint for 'projects/1' attempting to use service"
            " 'tpu.googleapis.com'.",
            Kind.POLICY,
            [
                "(roles/orgpolicy.policyAdmin) must exempt the project for tpu.googleapis.com",
                "gcloud org-policies describe gcp.restrictServiceUsage --effective --project=PROJECT",
            ],
        ),
    ],
    ids=["off", "may not be enabled", "may not be used"],
)
def test_a_service_that_cannot_be_called_is_named_with_the_next_command(
    message: str, kind: Kind, fixes: list[str]
) -> None:
    failure = classify(message)
    assert failure.kind is kind
    for fix in fixes:
        assert fix in with_roles(failure.fix)


def test_only_a_404_is_missing() -> None:
    """activation-extract took every failed `describe` for NOT_FOUND, and deleted what was alive."""
    for status in (*range(400, 404), *range(405, 600), None):
        assert classify("The node can't be shown: not found in cache", status).kind is not Kind.MISSING
    assert classify("whatever", 404).kind is Kind.MISSING


@pytest.mark.parametrize("status", [*range(400, 600)])
def test_every_status_has_a_kind_and_a_fix(status: int) -> None:
    result = classify("no words", status)
    assert result.fix
    assert (result.kind in FOR_PEOPLE) == (status in (400, 401, 403, 412, 422, 501))


def test_a_quota_and_a_permission_are_named() -> None:
    output = "Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-east5-b."
    assert classify(output, 429).about == "TPUV6EPerProjectPerZoneForTPUAPI"
    assert classify("Permission 'tpu.nodes.list' denied on resource", 403).about == "tpu.nodes.list"


@pytest.mark.parametrize("scope", ["regional", "project"])
def test_a_cluster_without_quota_is_no_missing_permission(scope: str) -> None:
    answer = classify(
        f'googleapi: Error 403: (1) insufficient {scope} quota to satisfy request: resource "CPUS": request'
        " requires '72.0' and is short '48.0'. project has a quota of '24.0', '24.0' available., forbidden"
    )
    assert (answer.kind, answer.about) == (Kind.QUOTA, "CPUS")


def test_a_batch_without_quota_is_no_missing_permission() -> None:
    answer = classify("Insufficient 'CPUS' quota. Requested 12.0, available 8.0. forbidden", 403)
    assert (answer.kind, answer.about) == (Kind.QUOTA, "CPUS")
