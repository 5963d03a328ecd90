"""Submitted text becomes shards by Spark and trains a slice, once, though its event comes twice, late or never.

From raw text to a trained checkpoint, once: an object in the raw bucket starts the workflow, the workflow
a batch of real Spark, the batch makes shards, the function checks them, a slice trains on them. The
object's event comes twice, the second time when all is over. Then the event of more text is lost, and the
schedule starts its run; a slice of four hosts, which stands by already, is handed it, is preempted, and
continues when it is back. What goes wrong on the way is the scenario pipeline-faults.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        "tpu:slices": [],
        "tpu:zones": ["us-east5-b"],
        "pipeline:rawBucketName": "my-project-raw",
        "pipeline:config": "text.toml",
        "pipeline:accountUsers": ["user:platform-engineer@example.com"],
        "pipeline:runners": ["user:ml-engineer@example.com"],
        "pipeline:schedule": "0 3 * * *",
        "pipeline:train": "fleet",
        "pipeline:trainSlice": "v6e-1",
        "pipeline:trainZone": "us-east5-b",
        "pipeline:trainRun": (
            "train tiny.toml --name @RUN@ --set train.steps=12 --set checkpoint.every_steps=6 "
            "--set data.path=@DATA@"
        ),
        "pipeline:changes": ["output.shards=4", "output.sequence_length=128"],
        "pipeline:pollS": 60,
    },
    steps=(
        step.up("storage"),
        step.publish("cpu"),
        step.up("network"),
        step.up("data"),
        step.up("tpu"),
        step.up("pipeline"),
        step.command("tpu pipeline publish dev", prints="pipeline:code is set"),
        step.up("pipeline"),
        step.unchanged("pipeline"),
        step.command(
            "tpu pipeline run dev gs://my-project-raw/corpus/ --yes", prints="nothing is there", fails=True
        ),
        step.submit("corpus/", documents=300, marker=False),
        # Workflows takes the event, and its answer is lost; then it answers with 503 for four hours.
        step.fault(
            "an event comes twice",
            what={"lost_answer": True},
            match={"method": "eventarc.events.deliver", "path": "objects/corpus/_SUBMIT$"},
        ),
        step.fault(
            "an event comes late",
            what={"status": 503},
            match={"method": "eventarc.events.deliver", "path": "objects/corpus/_SUBMIT$"},
            when={"for_s": 14400},
            times=None,
        ),
        step.command(
            "tpu pipeline run dev gs://my-project-raw/corpus/ --yes",
            prints=r"(?s)submitted as r\d+.*: trained.*shards   4 of",
            timeout_s=400,
        ).by("ml-engineer"),
        step.command("tpu pipeline status dev", prints="trained +gs://my-project-raw/corpus/").by(
            "ml-engineer"
        ),
        step.command("tpu pipeline cost dev", prints=r"r\d+").by("ml-engineer"),
        step.clock(1800),
        step.made(
            "corpus/",
            batches=("SUCCEEDED",),
            slices=1,
            executions=("duplicate", "duplicate", "trained"),
            late=True,
        ),
        # A slice that stands already, with idle hosts: no slice is made for the next run. It is preempted
        # meanwhile.
        step.clock(20),
        step.settings(
            {
                "tpu:slices": [
                    {
                        "name": "idle",
                        "acceleratorType": "v6e-16",
                        "zones": ["us-east5-b"],
                        "spot": True,
                        "run": "standby",
                    }
                ],
                "pipeline:schedule": "*/10 * * * *",
                "pipeline:train": "slice",
                "pipeline:trainSliceName": "idle",
                "pipeline:trainRun": (
                    "train tiny.toml --name handed --set train.steps=60 --set checkpoint.every_steps=10 "
                    "--set data.path=@DATA@"
                ),
            }
        ),
        step.up("tpu"),
        step.ready("idle"),
        step.up("pipeline"),
        step.command(
            """
        # its hosts stand by
        until tpu status dev | grep "stands by"; do sleep 1; done
        """,
            timeout_s=60,
        ),
        step.fault(
            "an event is lost",
            what={"lost": True},
            match={"method": "eventarc.events.deliver", "path": "objects/more/_SUBMIT$"},
        ),
        step.submit("more/", documents=300),
        step.kill("idle", "notice", run="handed", between=(20, 40)),
        step.recover("idle"),
        step.ends("more/", outcome="trained", at="train", prints=r"^training r\d+ on slice idle"),
        step.done("handed"),
        step.resumed("handed", 20),
        step.command(
            """
        # and again, when the run has ended
        until tpu status dev | grep "stands by: r[0-9]* done"; do sleep 1; done
        """,
            timeout_s=60,
        ),
        step.made("more/", batches=("SUCCEEDED",), slices=0, executions=("trained",)),
        # The raw text outlives its stack.
        step.destroy("pipeline", refused="protected"),
    ),
)
