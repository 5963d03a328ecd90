"""Pipeline layer: submitted text becomes token shards by Spark, and these a training job."""

from __future__ import annotations

from collections.abc import Iterable

from infra.catalog import region_of
from infra.core.layer import Acting, Hooks, Layer, Named, Place, deferred
from infra.core.providers import GOOGLE
from infra.google.quotas import Use, build_cpus, cpus
from infra.google.role import Role, act_as
from infra.layers.pipeline import access, paths, watched
from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.outputs import PipelineOutputs
from infra.layers.pipeline.rules import RULES
from infra.layers.pipeline.settings import PipelineSettings
from infra.prices.row import PriceRow, Rate, rate, row
from infra.settings.schema import Settings


def _services(settings: Settings) -> Iterable[str]:
    desired = settings[PipelineSettings]
    services = ["artifactregistry", "cloudbuild", "cloudfunctions", "cloudscheduler", "dataproc", "run"]
    services += ["eventarc", "pubsub"] if desired.on_submit else []
    services += ["aiplatform"] if desired.train == "vertex" else []
    return (f"{service}.googleapis.com" for service in services)


def _accounts(settings: Settings) -> Iterable[Named]:
    return (Named("pipeline:name", paths.account_id(settings, which), paths.owner(which))
            for which in paths.ACCOUNTS)  # fmt: skip


def _buckets(settings: Settings) -> Iterable[Named]:
    desired, path = settings[PipelineSettings], "pipeline:rawBucketName"
    yield Named(path, desired.raw_bucket_name, "that of the raw text")
    scratch = "pipeline:scratchBucketName" if desired.scratch_bucket_name else path
    yield Named(scratch, scratch_bucket(settings), "the pipeline's scratch")


def _places(settings: Settings) -> Iterable[Place]:
    yield Place("pipeline:scheduleRegion", "cloudscheduler", paths.sweep_region(settings))
    for service in _services(settings):
        if (name := service.partition(".")[0]) != "cloudscheduler":
            yield Place("storage:location", name, paths.region(settings))


def _quotas(settings: Settings) -> Iterable[Use]:
    desired = settings[PipelineSettings]
    cores = desired.driver_cores + desired.max_executors * desired.executor_cores
    region = paths.region(settings)
    yield Use(cpus(region), cores, "a batch of the pipeline uses at most")
    yield Use(build_cpus(region, "storage:location"), 1, "a build of the pipeline's function needs")


def _at_google(settings: Settings) -> dict[str, str]:
    emails = (paths.account(settings, id_) for id_ in paths.ACCOUNTS)
    accounts = (f"projects/{settings.project}/serviceAccounts/{email}" for email in emails)
    function = paths.function_id(settings)
    return {
        **{account: f"https://iam.googleapis.com/v1/{account}" for account in accounts},
        function: f"https://cloudfunctions.googleapis.com/v2/{function}",
    }


def _prices(settings: Settings) -> Iterable[PriceRow]:
    yield row("sweep of the pipeline", paths.sweep_region(settings), ("scheduler", 1))


def _rates(settings: Settings) -> Iterable[Rate]:
    desired, region = settings[PipelineSettings], paths.region(settings)
    used = [f"spark.dcu.{desired.tier}", f"spark.shuffle.{desired.tier}"]
    used += ["run.cpu", "run.memory", "run.requests"]
    used += ["registry", "build", "storage.standard", "storage.class-a", "storage.class-b", "logging"]
    if desired.raw_nearline_days:
        used += ["storage.nearline", "storage.retrieval.nearline"]
    if desired.on_submit:
        used.append("pubsub")  # which carries Eventarc's events
    if desired.train == "vertex":
        used.append("vertex.training")
    rates = [rate(id_, region) for id_ in used]
    if desired.train == "fleet" and desired.train_zone:
        chips = "tpu.spot" if desired.train_spot else "tpu.on-demand"
        rates.append(rate(chips, region_of(desired.train_zone)))
    return rates


_ACTING = Acting(
    "pipeline's accounts",
    "pipeline:accountUsers",
    lambda given: [paths.account_id(given, which) for which in paths.ACTED_AS],
)
_ROLES = (
    Role(
        "roles/storage.admin", "create the pipeline's raw and scratch buckets and their policies",
        ("storage.buckets.create", "storage.buckets.get", "storage.buckets.update", "storage.buckets.delete",
         "storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy", "storage.objects.create",
         "storage.objects.get", "storage.objects.list", "storage.objects.delete"),
    ),
    Role(
        "roles/iam.serviceAccountAdmin", "create the pipeline's accounts and grant their use",
        ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.getIamPolicy",
         "iam.serviceAccounts.setIamPolicy", "iam.serviceAccounts.delete"),
    ),
    act_as(_ACTING.on, "create the pipeline's function and jobs"),
    Role(
        "roles/iam.roleAdmin", "create the pipeline's custom roles",
        ("iam.roles.create", "iam.roles.get", "iam.roles.update", "iam.roles.delete", "iam.roles.undelete"),
    ),
    Role(
        "roles/resourcemanager.projectIamAdmin", "grant the pipeline's accounts their roles",
        ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy"),
    ),
    Role(
        "roles/compute.securityAdmin", "let Spark's nodes reach one another",
        ("compute.firewalls.create", "compute.firewalls.get", "compute.firewalls.update",
         "compute.firewalls.delete"),
    ),
    Role(
        "roles/artifactregistry.admin", "create the repository of the function's image",
        ("artifactregistry.repositories.create", "artifactregistry.repositories.get",
         "artifactregistry.repositories.update", "artifactregistry.repositories.delete",
         "artifactregistry.repositories.getIamPolicy", "artifactregistry.repositories.setIamPolicy"),
    ),
    Role(
        "roles/cloudfunctions.admin", "create the function",
        ("cloudfunctions.functions.create", "cloudfunctions.functions.get", "cloudfunctions.functions.update",
         "cloudfunctions.functions.delete", "cloudfunctions.operations.get"),
    ),
    Role(
        "roles/run.admin", "grant access to the function",
        ("run.services.getIamPolicy", "run.services.setIamPolicy"),
    ),
    Role(
        "roles/eventarc.admin", "create the trigger",
        ("eventarc.triggers.create", "eventarc.triggers.get", "eventarc.triggers.delete",
         "eventarc.operations.get"), setting="on_submit",
    ),
    Role(
        "roles/serviceusage.serviceUsageAdmin", "create Eventarc's service agent",
        ("serviceusage.services.enable",), setting="on_submit",
    ),
    Role(
        "roles/cloudscheduler.admin", "create the sweep",
        ("cloudscheduler.jobs.create", "cloudscheduler.jobs.get", "cloudscheduler.jobs.update",
         "cloudscheduler.jobs.delete"),
    ),
)  # fmt: skip

# https://cloud.google.com/eventarc/docs/troubleshooting
_TRANSIENT_ERRORS = {
    # https://github.com/firebase/firebase-tools/issues/5244,
    # https://github.com/google-github-actions/deploy-cloud-functions/issues/461
    r"(?i)service agent|service account for cloud storage|pubsub\.(topics\.)?publish"
    r"|repository metadata|cloud functions service account"
    r"|eventarc service account|bucket \S+ could not be validated": (
        "Google's service agents are new, and their roles don't count yet"
    ),
    # https://github.com/hashicorp/terraform-provider-google/issues/20571
    r"(?i)storage object viewer permission to|missing permission on the build service account": (
        "the grants of the account that builds the function are new, and don't count yet"
    ),
}


def _following(settings: Settings) -> str:
    desired, environment = settings[PipelineSettings], settings.environment
    if desired.code is None:
        return f"tpu pipeline publish {environment}"
    return f"tpu pipeline run {environment} gs://{desired.raw_bucket_name}/FOLDER/"


LAYER = Layer(
    name="pipeline",
    reads=("storage", "network"),
    may_read=("builds", "tpu", "gke"),
    settings=PipelineSettings,
    rules=RULES,
    roles=_ROLES,
    grants=access.on_project,
    services=_services,
    providers=GOOGLE,
    outputs=PipelineOutputs,
    accounts=_accounts,
    buckets=_buckets,
    places=_places,
    prices=_prices,
    rates=_rates,
    at_google=_at_google,
    ids={
        "gcp:artifactregistry/repository:Repository": (
            "projects/{project}/locations/{location}/repositories/{repositoryId}"
        ),
        "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": (
            "projects/{project}/locations/{location}/repositories/{repository} {role} {member}"
        ),
        "gcp:cloudfunctionsv2/function:Function": "projects/{project}/locations/{location}/functions/{name}",
        "gcp:cloudrunv2/serviceIamMember:ServiceIamMember": (
            "projects/{project}/locations/{location}/services/{name} {role} {member}"
        ),
        "gcp:eventarc/trigger:Trigger": "projects/{project}/locations/{location}/triggers/{name}",
        "gcp:cloudscheduler/job:Job": "projects/{project}/locations/{region}/jobs/{name}",
    },
    hooks=Hooks(
        acting=_ACTING,
        missing_grant=access.of_the_build,
        transient_errors=_TRANSIENT_ERRORS,
        quotas=_quotas,
        following=_following,
        metrics=watched.METRICS,
        alerts=watched.ALERTS,
    ),
    program=deferred(f"{__package__}.program"),
)
