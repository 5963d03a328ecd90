"""Submitted text becomes shards by Spark and trains a slice, once, though its event comes twice, late or never.

From raw text to a trained checkpoint, once: an object in the raw bucket starts the workflow, the workflow
a batch of real Spark, the batch makes shards, the function checks them, a slice trains on them. The
object's event comes twice, the second time when all is over. Then the event of more text is lost, and the
schedule starts its run. What goes wrong on the way is the scenario pipeline-faults.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION, PIPELINE, TRAIN_ON_SHARDS
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        **PIPELINE,
        "pipeline:config": "text.toml",
        "pipeline:schedule": "0 3 * * *",
        "pipeline:train": "fleet",
        "pipeline:trainSlice": "v6e-1",
        "pipeline:trainZone": "us-east5-b",
        "pipeline:trainRun": TRAIN_ON_SHARDS,
    },
    steps=(
        *FOUNDATION,
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
        # A lost event, which the schedule makes good.
        step.clock(60),
        step.settings({"pipeline:schedule": "*/10 * * * *"}),
        step.up("pipeline"),
        step.fault(
            "an event is lost",
            what={"lost": True},
            match={"method": "eventarc.events.deliver", "path": "objects/more/_SUBMIT$"},
        ),
        step.submit("more/", documents=300),
        step.ends("more/", outcome="trained", at="train", prints=r"^training slice r\d+"),
        step.made("more/", batches=("SUCCEEDED",), slices=1, executions=("trained",)),
        # The raw text outlives its stack.
        step.destroy("pipeline", refused="protected"),
    ),
)
