"""A fault at each step of the pipeline ends in its outcome and its alert, and a retry continues from there.

A fault at each step of the pipeline: each ends in the outcome that docs/reference/pipeline.md names for it, and a
retry continues from what is there. At the end there is one batch that succeeded for each submission, and
one slice for each time that training was begun or a boot failed. The layer `monitoring` is up: what its alerts see is
published and looked into.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import ALERT_TOPIC, CHIPS_PER_ZONE, PIPELINE, SUBSCRIBE
from rehearsal.scenario.scenario import Scenario

RETRY = "next +tpu pipeline retry"
RAW = {"method": "storage.objects.list", "query": "prefix=a(%2F|/)&", "principal": "tpu-pipeline-run@*"}
BATCHES, FUNCTION = {"method": "dataproc.*.batches.create"}, {"method": "run.services.invoke"}
SHARDS = {"method": "storage.objects.get", "path": "tokens(%2F|/)", "principal": "tpu-pipeline-run@*"}
# Longer than the function tries again, in virtual seconds.
OUTAGE = {"for_s": 1500}
SCENARIO = Scenario(
    clock=60,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        "data:snapshot": None,
        "data:sizeGib": None,
        **PIPELINE,
        **ALERT_TOPIC,
        "pipeline:config": "text.toml",
        "pipeline:viewers": ["user:platform-engineer@example.com"],
        "pipeline:trainSlice": "v6e-1",
    },
    steps=(
        step.up("storage"),
        step.publish("bare"),
        step.up("network"),
        step.up("tpu"),
        step.up("pipeline"),
        step.command("tpu pipeline publish dev", prints="pipeline:code is set"),
        step.up("pipeline"),
        step.up("monitoring"),
        SUBSCRIBE,
        # The event is lost, and a sweep doesn't reach the function: the next one starts the run, of a folder in which nothing lies.
        step.fault(
            "an event is lost",
            what={"lost": True},
            match={"method": "eventarc.events.deliver", "path": "objects/a/_SUBMIT$"},
        ),
        step.fault("the function is unreachable", what={"reset": True}, match=FUNCTION),
        step.submit("a/", documents=0),
        step.ends("a/", outcome="empty", at="preprocess", prints="nothing is in gs://my-project-raw/a/"),
        step.submit("a/", marker=False),
        # The submitted batch can't be read.
        step.fault(
            "the raw bucket may not be listed",
            what={
                "status": 403,
                "message": (
                    "tpu-pipeline-run@my-project.iam.gserviceaccount.com does not have "
                    "storage.objects.list access to the Google Cloud Storage bucket. Permission "
                    "'storage.objects.list' denied on resource my-project-raw"
                ),
            },
            match=RAW,
        ),
        step.ends(
            "a/",
            outcome="permission",
            at="preprocess",
            prints="it needs roles/storage.objectViewer on the bucket my-project-raw for tpu-pipeline-run",
            again=True,
        ),
        step.fault(
            "the raw bucket is not there",
            what={"status": 404, "message": "The specified bucket does not exist."},
            match=RAW,
        ),
        step.ends("a/", outcome="refused", at="preprocess", prints="bucket does not exist", again=True),
        # No batch is created.
        step.fault(
            "no batch may be created",
            what={"status": 403, "message": "Permission 'dataproc.batches.create' denied on resource"},
            match=BATCHES,
        ),
        step.ends(
            "a/",
            outcome="permission",
            at="preprocess",
            prints="it needs the role tpu_pipeline_run_batches on the project",
            again=True,
        ),
        step.fault(
            "no quota for a batch",
            what={"status": 403, "message": "Insufficient 'CPUS' quota. Requested 12.0, available 8.0."},
            match=BATCHES,
        ),
        step.ends("a/", outcome="quota", at="preprocess", prints=RETRY, again=True),
        step.fault("too many batches", what={"status": 429}, match=BATCHES, when=OUTAGE, times=None),
        step.ends("a/", outcome="throttled", at="preprocess", prints=RETRY, again=True),
        step.fault("Dataproc is down", what={"status": 503}, match=BATCHES, when=OUTAGE, times=None),
        step.ends("a/", outcome="unavailable", at="preprocess", prints=RETRY, again=True),
        step.fault(
            "a batch that was deleted has the name",
            what={"status": 409, "message": "Already exists: Failed to create batch"},
            match=BATCHES,
        ),
        step.ends(
            "a/", outcome="refused", at="preprocess", prints="batch .* isn't there any more", again=True
        ),
        step.made("a/", batches=()),
        # The answer to its creation is lost: the second request is refused with 409, and finds the batch.
        step.fault("an answer of Dataproc is lost", what={"lost_answer": True}, match=BATCHES),
        step.ends("a/", outcome="running", at="preprocess", prints="^batch ", again=True),
        # A batch fails by its input, and alerts report it.
        step.quiet(),
        step.submit("b/", text="no JSON"),
        step.ends("b/", outcome="failed", at="preprocess", prints="next +tpu pipeline logs"),
        step.fired(
            {"batch-failed": r"tpu-pipeline-r\d+ .*FAILED", "pipeline-failed": r"r\d+ .*failed"},
            subscription="oncall",
        ).by("platform-engineer"),
        step.ends("a/", outcome="shards", at="train"),
        step.made("a/", batches=("SUCCEEDED",)),
        # The shards can't be read, and then one is gone: the batch stays the only one of the mended text.
        step.submit("b/", marker=False),
        step.fault(
            "the shards may not be read",
            what={
                "status": 403,
                "message": (
                    "tpu-pipeline-run@my-project.iam.gserviceaccount.com does not have "
                    "storage.objects.get access to the Google Cloud Storage object. Permission "
                    "'storage.objects.get' denied on resource (or it may not exist)."
                ),
            },
            match=SHARDS,
        ),
        step.retry("b/"),
        step.ends("b/", outcome="running", at="preprocess", prints="^batch +.*-1, "),
        step.submit("c/"),
        step.ends("c/", outcome="running", at="preprocess", prints="^batch "),
        step.command(
            r"""
        # somebody cancels the run of c/
        run=$(tpu pipeline status dev | awk '/my-project-raw\/c\// {print $1}')
        tpu pipeline cancel dev "$run" --yes
        """,
            prints="cancelled by the next sweep",
        ),
        step.ends("c/", outcome="cancelled", at="preprocess", prints=RETRY),
        step.ends(
            "b/", outcome="permission", at="check", prints="it needs roles/storage.objectViewer on the bucket"
        ),
        step.fault("the bucket is down", what={"status": 503}, match=SHARDS, when=OUTAGE, times=None),
        step.ends("b/", outcome="unavailable", at="check", prints=RETRY, again=True),
        step.shard("b/"),
        step.ends("b/", outcome="invalid", at="check", prints="is missing", again=True),
        step.shard("b/", back=True),
        # From here on a slice trains, by a program that fails for good; a batch has ten minutes, training
        # an hour. A run costs $2 at most, by few executors with disks that are as large as they may be.
        step.settings(
            {
                "pipeline:train": "fleet",
                "pipeline:trainZone": "us-east5-b",
                "pipeline:trainRun": 'bash -c "exit 2" @RUN@ @DATA@',
                "pipeline:trainHours": 1,
                "pipeline:ttlMinutes": 10,
                "pipeline:maxExecutors": 2,
                "pipeline:diskGib": 16384,
                "pipeline:maxRunCostUsd": 2,
            }
        ),
        step.up("pipeline"),
        step.quiet(),
        step.clock(300),
        step.ends("c/", outcome="ttl", at="preprocess", prints=RETRY, again=True),
        step.fired({"batch-failed": "CANCELLED", "pipeline-failed": r"r\d+ .*ttl"}, subscription="oncall").by(
            "platform-engineer"
        ),
        step.clock(60),
        step.quota(CHIPS_PER_ZONE, "us-east5-b", chips=0),
        step.ends("b/", outcome="quota", at="train", prints=RETRY, again=True),
        step.fired(
            {
                "quota-exceeded": f"{CHIPS_PER_ZONE}.*allowed are 0",
                "pipeline-failed": r"r\d+ .*quota",
            },
            subscription="oncall",
            clock=600,
        ).by("platform-engineer"),
        step.quota(CHIPS_PER_ZONE, "us-east5-b", chips=64),
        step.submit("d/", documents=0, gib=80),
        step.ends(
            "d/",
            outcome="too_expensive",
            at="preprocess",
            prints=r"predicted: \$2\.[0-9]+, pipeline:maxRunCostUsd allows \$2.*next +tpu pipeline retry",
        ),
        step.made("d/", batches=()),
        step.fault(
            "no slice may be created",
            what={"status": 403, "message": "Permission 'tpu.nodes.create' denied on resource"},
            match={"method": "tpu.*.nodes.create"},
        ),
        step.ends(
            "b/", outcome="permission", at="train", prints="it needs the role tpu_pipeline_run_", again=True
        ),
        step.ends("b/", outcome="training_failed", at="train", prints=r"slice r\d+ ", again=True),
        # A slice whose boot fails is made again. Its program never ends, and its hour passes. The first blob
        # that a host reads is the boot script.
        step.settings({"pipeline:trainRun": 'bash -c "sleep 100000" @RUN@ @DATA@'}),
        step.up("pipeline"),
        step.quiet(),
        step.fault(
            "the bucket lacks a file of the bundle",
            what={"status": 404},
            match={
                "method": "storage.objects.get",
                "path": "bundles(%2F|/)blobs",
                "principal": "tpu-training@*",
            },
            when={"after": 1},
        ),
        step.clock(10),
        step.retry("b/"),
        step.fired({"boot-failed": "boot failed in stage bundle"}, subscription="oncall", clock=300).by(
            "platform-engineer"
        ),
        step.heartbeat("tpu-us-east5-b-0", 1, "running"),
        step.clock(1200),
        step.ends(
            "b/",
            outcome="train_hours",
            at="train",
            prints=r"longer than 1 h, and was ended.*next +tpu pipeline retry.*slice r\d+-1 ",
        ),
        step.clock(60),
        # The program is mended: another slice takes the place of the one that failed. The id of the next
        # batch of c/ is taken.
        step.settings(
            {
                "pipeline:trainRun": 'bash -c "ls @DATA@/manifest.json" @RUN@',
                "pipeline:ttlMinutes": None,
                "pipeline:maxRunCostUsd": None,
            }
        ),
        step.up("pipeline"),
        step.taken("c/"),
        step.ends(
            "c/",
            outcome="conflict",
            at="preprocess",
            prints="is there already, and isn.t the pipeline.s",
            again=True,
        ),
        step.retry("c/"),
        step.ends("b/", outcome="trained", at="train", prints=r"slice r\d+-2 ", again=True),
        step.ends("c/", outcome="trained", at="train", prints=r"slice r\d+ "),
        step.made("b/", batches=("FAILED", "SUCCEEDED"), slices=4),
        step.made("c/", batches=("CANCELLED", "CANCELLED", "FAILED", "SUCCEEDED"), slices=1),
        step.command(
            r"""
        # the first command of every runbook, those of alerts that no fault here fires among them
        set -o pipefail
        for page in docs/runbooks/*.md; do
          line=$(grep -A2 '^## First command' "$page" | tail -n 1 | sed 's/^ *//; s/ENV/dev/; s/PROJECT/my-project/; s/REGION/us-east5/')
          echo "\$ $line"
          # doctor's status is 1 where anything is missing that a slice needs
          bash -c "$line" || [[ $line == "tpu doctor dev" ]] || exit 1
          count=$((${count:-0} + 1))
        done
        echo "$count of $(ls docs/runbooks/*.md | wc -l) first commands ran"
        """,
            prints=r"(\d\d) of \1 first commands ran",
        ).by("platform-engineer"),
        step.command(
            """
        # none of the slices stays
        until tpu fleet list dev | grep "^no nodes"; do sleep 1; done
        """,
        ),
    ),
)
