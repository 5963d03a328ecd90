"""Rules for buckets."""

from collections.abc import Iterator

from infra.layers.pipeline.names import scratch_bucket
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import controller_bucket, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.policy.rule import Check, Resource, Rule, literal
from infra.settings.schema import Settings

_BUCKET = ("gcp:storage/bucket:Bucket",)
_MEMBERS = ("gcp:*Member", "gcp:*Binding")
_WEEK_S = 7 * 86400


def _recoverable(resource: Resource, settings: Settings) -> Iterator[str]:
    if resource.inputs.get("name") in (*_passing(settings), controller_bucket(settings)):
        return  # written anew all the time: PL10
    seconds = resource.get("softDeletePolicy.retentionDurationSeconds")
    # Google's default is a week.
    if resource.get("versioning.enabled") is not True and seconds is not None and seconds < _WEEK_S:
        yield f"versioning.enabled: false, softDeletePolicy.retentionDurationSeconds: {seconds:g}"


def _rewritten(resource: Resource, settings: Settings) -> Iterator[str]:
    if resource.inputs.get("name") in _passing(settings):
        if (seconds := resource.get("softDeletePolicy.retentionDurationSeconds")) != 0:
            yield f"softDeletePolicy.retentionDurationSeconds: {seconds}"
        if resource.get("versioning.enabled") is True:
            yield "versioning.enabled: true"


def _passing(settings: Settings) -> tuple[str, ...]:
    """Buckets of what is recreated if it is lost, and removed all the time."""
    return (steps_bucket(settings), *_scratch(settings))


def _scratch(settings: Settings) -> tuple[str, ...]:
    return (scratch_bucket(settings),) if PipelineSettings in settings.sections else ()


def _ends(resource: Resource, settings: Settings) -> Iterator[str]:
    actions = {rule.get("action", {}).get("type") for rule in resource.inputs.get("lifecycleRules") or ()}
    if resource.inputs.get("name") in _scratch(settings) and "Delete" not in actions:
        yield "lifecycleRules: none with the action Delete"


def _public(resource: Resource, _: Settings) -> Iterator[str]:
    for member in (resource.inputs.get("member"), *(resource.inputs.get("members") or ())):
        if member in ("allUsers", "allAuthenticatedUsers"):
            yield f"member: {member}"


def _encrypted(resource: Resource, settings: Settings) -> Iterator[str]:
    key, actual = settings[StorageSettings].kms_key, resource.get("encryption.defaultKmsKeyName")
    required = (settings[StorageSettings].bucket_name, steps_bucket(settings))
    if key and resource.inputs.get("name") in required and actual != key:
        yield f"encryption.defaultKmsKeyName: {actual or 'nothing'}"


def _stays(resource: Resource, settings: Settings) -> Iterator[str]:
    if resource.inputs.get("name") in _scratch(settings):
        return
    if resource.get("forceDestroy") is not False:
        yield f"forceDestroy: {resource.get('forceDestroy')}"
    if not resource.protect:
        yield "protect: false"


def _unfinished(resource: Resource, _: Settings) -> Iterator[str]:
    actions = {rule.get("action", {}).get("type") for rule in resource.inputs.get("lifecycleRules") or ()}
    if resource.retain_on_delete and "AbortIncompleteMultipartUpload" not in actions:
        yield "lifecycleRules: none with the action AbortIncompleteMultipartUpload"


def _any_website(resource: Resource, _: Settings) -> Iterator[str]:
    for cors in resource.inputs.get("cors") or ():
        if "*" in (cors.get("origins") or ()):
            yield "cors.origins: *"


def _stays_readable(resource: Resource, settings: Settings) -> Iterator[str]:
    if resource.inputs.get("name") not in (settings[StorageSettings].bucket_name, steps_bucket(settings)):
        return
    for rule in resource.inputs.get("lifecycleRules") or ():
        if rule.get("action", {}).get("type") == "SetStorageClass":
            yield f"lifecycleRules.action.storageClass: {rule['action'].get('storageClass')}"


def _rule(id_: str, about: str, fix: str, maps: str, check: Check) -> Rule:
    return Rule(id_, _BUCKET, about, fix, maps, check)


RULES = (
    _rule("B01", "access is decided by the bucket's IAM policy alone: objects have no ACLs",
          "uniform_bucket_level_access=True", "CKV_GCP_29, CIS 5.2",
          literal("uniformBucketLevelAccess", True)),
    _rule("B02", "no grant can make a bucket public", 'public_access_prevention="enforced"', "CKV_GCP_114",
          literal("publicAccessPrevention", "enforced")),
    Rule("B03", _MEMBERS, "no grant is public", "name users, groups or service accounts",
         "CKV_GCP_28, CKV_GCP_102, CIS 5.1", _public),
    _rule("B04", "deleted objects can be recovered for 7 days, by versions or soft delete",
          "storage:versioning, or storage:softDeleteDays of 7", "CKV_GCP_78", _recoverable),
    _rule("B06", "with storage:kmsKey, checkpoints are encrypted by it", "encryption={…}", "",
          _encrypted),
    _rule("B07", "buckets are protected, except the pipeline's scratch bucket",
          "protect=True and force_destroy=False", "", _stays),
    _rule("B08", "unfinished uploads are deleted",
          "a lifecycle rule with AbortIncompleteMultipartUpload", "", _unfinished),
    _rule("B09", "CORS doesn't open a bucket to every website", "the origins by name, or no cors", "",
          _any_website),
    _rule("B10", "checkpoints stay in their class: a job that resumes would pay for reading a colder one",
          "storage:storageClass, and no lifecycle rule with SetStorageClass", "", _stays_readable),
    _rule("PL10", "deleted checkpoints and scratch objects aren't kept by soft delete or versions",
          "soft delete of 0 s and no versions", "", _rewritten),
    _rule("PL17", "the scratch bucket deletes objects after some days",
          "a lifecycle rule with Delete", "", _ends),
)  # fmt: skip
