"""Submitted text becomes shards by Spark and trains a slice, once, though its event comes twice, late or never.

From raw text to a trained checkpoint, once: an object in the raw bucket calls the function, which creates a
batch of real Spark, checks the shards that it makes, and has a slice train on them. Google takes that slice
away while it trains; the function brings it back, and deletes it at the end. The object's event comes twice,
the second time when all is over. Then the event of more text is lost, the sweep starts its run, and a
monitor keeps its slice. What goes wrong on the way is the scenario pipeline-faults.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION, PIPELINE, train_on_shards
from rehearsal.scenario.scenario import Scenario

NO_SLICE = step.command("tpu fleet list dev", prints="^no nodes")

SCENARIO = Scenario(
    clock=60,
    runtimes=("spark", "functions"),
    prepare=("tpu pipeline publish dev --dry-run",),
    settings={
        **PIPELINE,
        "pipeline:config": "text.toml",
        "pipeline:train": "fleet",
        "pipeline:trainSlice": "v6e-1",
        "pipeline:trainZone": "us-east5-b",
        "pipeline:trainRun": train_on_shards(200, 20),
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
        # The function takes the event, and its answer is lost; then it answers with 503 for twelve hours.
        step.fault(
            "an event comes twice",
            what={"lost_answer": True},
            match={"method": "eventarc.events.deliver", "path": "objects/corpus/_SUBMIT$"},
        ),
        step.fault(
            "an event comes late",
            what={"status": 503},
            match={"method": "eventarc.events.deliver", "path": "objects/corpus/_SUBMIT$"},
            when={"for_s": 43200},
            times=None,
        ),
        step.start("run", "tpu pipeline run dev gs://my-project-raw/corpus/ --yes").by("ml-engineer"),
        step.preempted("corpus/", 50),
        step.stop("run", prints=r"(?s)submitted as r\d+.*: trained.*shards   4 of", wait=True),
        step.continued("corpus/", 20),
        step.command("tpu pipeline status dev", prints="trained +gs://my-project-raw/corpus/").by(
            "ml-engineer"
        ),
        step.command("tpu pipeline cost dev", prints=r"r\d+").by("ml-engineer"),
        NO_SLICE,
        step.clock(1800),
        step.made("corpus/", batches=("SUCCEEDED",), slices=2, late=True),
        # An event is lost, which the sweep makes good; a monitor keeps the slice of its run.
        step.clock(60),
        step.fault(
            "an event is lost",
            what={"lost": True},
            match={"method": "eventarc.events.deliver", "path": "objects/more/_SUBMIT$"},
        ),
        step.start("monitor", "tpu fleet monitor dev --monitor-interval 5"),
        step.submit("more/", documents=300),
        step.ends("more/", outcome="trained", at="train", prints=r"^training slice r\d+", timeout_s=400),
        step.made("more/", batches=("SUCCEEDED",), slices=1),
        step.stop("monitor", prints="create"),
        NO_SLICE,
        # The raw text outlives its stack.
        step.destroy("pipeline", refused="protected"),
    ),
)
