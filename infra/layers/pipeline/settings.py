"""Settings of the pipeline layer."""

from dataclasses import dataclass, replace

from infra.catalog import CATALOG
from infra.layers.pipeline import facts
from infra.settings import commands, rules
from infra.settings.rules import Rule
from infra.settings.schema import setting

WORKER, SMALL_ROLE = "roles/dataproc.worker", "roles/dataproc.serverlessNode"
"""Of Spark's account: of runtime 2, which holds all that it needs; of runtime 3, with grants beside it."""
NO_TRAINING = "none"
TRAININGS = (NO_TRAINING, "fleet", "jobset", "vertex")
_NAME = rules.pattern(
    "[a-z]([-a-z0-9]{2,19}[a-z0-9])",
    "4 to 21 lowercase letters, digits and hyphens (others add to it), first a letter, last no hyphen",
    "rename it",
)
_OBJECT = rules.pattern(r"gs://[^/]+/(?!/|\.)(?!.*(//|/\.))[\w./-]{1,200}\.toml", "", "")
_CONFIG = Rule(
    lambda value: (
        value in commands.PREPROCESSES
        or (_OBJECT.ok(value) and rules.DOMAIN_BUCKET_NAME.ok(value.split("/")[2]))
    ),
    f"gs://BUCKET/OBJECT.toml that Spark's account may read, or packaged: {', '.join(commands.PREPROCESSES)}",
    f"write {commands.PREPROCESSES[0]}, and what differs as pipeline:changes",
)
_CHANGE = rules.pattern(r"[\w.]+=[^\n]{0,500}", "section.key=value, as `--set` takes it", "write it so")
_CODE = rules.pattern(
    "[0-9a-f]{64}", "the sha256 that `tpu pipeline publish` writes", "run tpu pipeline publish ENV"
)
_CORES = Rule(
    lambda value: value in facts.CORES,
    f"one of {', '.join(map(str, facts.CORES))}",
    "write one of these",
)


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Spark turns submitted text into token shards, and a training job can follow."""

    name: str = setting(
        "name of the function, its trigger and its sweep, and prefix of its accounts",
        default="tpu-pipeline",
        rule=_NAME,
        per_environment=True,
    )
    raw_bucket_name: str = setting(
        "bucket of the raw text; kept when its stack is destroyed",
        rule=rules.DOMAIN_BUCKET_NAME,
        example="my-project-raw",
    )
    existing_raw_bucket: bool = setting(
        "use an existing bucket, in storage:location; the layer only reads it",
        default=False,
    )
    raw_nearline_days: int = setting(
        "days after which raw text goes to NEARLINE, which bills each read; 0: never",
        default=0,
        rule=rules.between(0, 3650),
    )
    scratch_bucket_name: str | None = setting(
        "bucket of code and of Spark's own files; default: rawBucketName-scratch",
        default=None,
        rule=rules.BUCKET_NAME,
    )
    scratch_days: int = setting(
        "days after which its objects are removed", default=7, rule=rules.between(1, 365)
    )
    code: str | None = setting(
        "sha256 of the job's code and packages; `tpu pipeline publish` writes it", default=None, rule=_CODE
    )
    config: str = setting(
        "config of `workload preprocess` (docs/reference/preprocess.md)",
        default="text.toml",
        rule=_CONFIG,
    )
    changes: tuple[str, ...] = setting(
        "overrides of that config, as `--set` takes them", default=(), rule=_CHANGE
    )
    runtime_version: str = setting(
        "Spark runtime of the batches",
        default="2.3",
        rule=rules.one_of(*facts.RUNTIMES),
    )
    driver_cores: int = setting("cores of the driver", default=4, rule=_CORES)
    driver_memory_mib: int = setting(
        "heap of the driver's JVM", default=9600, rule=rules.between(512, 118784, "MiB")
    )
    driver_overhead_mib: int = setting(
        "memory of the driver outside the heap", default=2400, rule=rules.between(384, 118784, "MiB")
    )
    executor_cores: int = setting("cores of an executor, each with a Python worker", default=4, rule=_CORES)
    executor_memory_mib: int = setting(
        "heap of an executor's JVM", default=6144, rule=rules.between(512, 118784, "MiB")
    )
    executor_overhead_mib: int = setting(
        "memory of an executor outside the heap, for its Python workers", default=6144,
        rule=rules.between(384, 118784, "MiB"),
    )  # fmt: skip
    dynamic_allocation: bool = setting(
        "scale executors with the work, from minExecutors to maxExecutors", default=True
    )
    min_executors: int = setting("minimum executors", default=2, rule=rules.between(2, facts.MOST_EXECUTORS))
    max_executors: int = setting(
        "maximum executors; without dynamicAllocation their number", default=20,
        rule=rules.between(2, facts.MOST_EXECUTORS),
    )  # fmt: skip
    disk_gib: int = setting(
        "disk of each node", default=250, rule=rules.between(facts.LEAST_DISK_GIB, 16384, "GiB")
    )
    tier: str = setting(
        "compute tier of driver and executors", default="standard", rule=rules.one_of("standard", "premium")
    )
    ttl_minutes: int = setting(
        "time limit of a batch",
        default=240,
        rule=rules.between(facts.LEAST_TTL_MINUTES, facts.MOST_TTL_MINUTES, "min"),
    )
    on_submit: bool = setting("start a run when an object FOLDER/_SUBMIT is written", default=True)
    sweep_minutes: int = setting(
        "interval at which the function advances every run and request; it lists the raw bucket every ten "
        "minutes",
        default=1, rule=rules.between(1, 30, "min"),
    )  # fmt: skip
    schedule_region: str | None = setting(
        "region of the sweep's job; default: storage:location, or the nearest with Cloud Scheduler",
        default=None,
        rule=replace(rules.REGION, fix="leave it out: the nearest region that has Cloud Scheduler is taken"),
    )
    train: str = setting(
        "what trains on the shards: a fleet's new slice, a JobSet of the queue, a Vertex AI custom job, or "
        "none",
        default=NO_TRAINING,
        rule=rules.one_of(*TRAININGS),
    )
    train_run: str = setting(
        "their command; @DATA@ is the folder of the shards, @RUN@ the run", default="train tiny.toml "
        "--name @RUN@ --set data.path=@DATA@", rule=rules.COMMAND,
    )  # fmt: skip
    train_slice: str = setting(
        "size of the slice", default="v6e-8", rule=rules.one_of(*(kind.name for kind in CATALOG.types))
    )
    train_zone: str | None = setting("zone of the slice, with train: fleet", default=None, rule=rules.ZONE)
    train_spot: bool = setting("a Spot slice", default=True)
    train_hours: int = setting("time limit of training", default=24, rule=rules.between(1, 8760, "h"))
    train_team: str | None = setting("team of the JobSet, of queue:teams", default=None)
    train_image: str | None = setting(
        "image of the Vertex AI custom job, built with `tpu job image`", default=None, rule=rules.DIGEST
    )
    max_run_cost_usd: int | None = setting(
        "maximum predicted price of a run; more is refused before anything starts",
        default=None,
        rule=rules.between(1, 1_000_000, "$"),
    )
    account_users: tuple[str, ...] = setting(
        "members who bring the layer up: they may act as its service accounts", default=(), rule=rules.MEMBER
    )
    runners: tuple[str, ...] = setting(
        "members who may start, cancel and retry runs", default=(), rule=rules.MEMBER
    )
    viewers: tuple[str, ...] = setting("members who may see runs", default=(), rule=rules.MEMBER)
    spark_role: str = setting(
        "role of Spark's account on the project; dataproc.worker, documented for runtime 2, can read and "
        "write every bucket of the project",
        default=WORKER,
        rule=rules.one_of(WORKER, SMALL_ROLE),
    )
