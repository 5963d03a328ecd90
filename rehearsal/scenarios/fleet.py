"""Eight workers in two zones, each failure of preemptible slices: nothing is lost, nothing stored twice.

Eight workers in two zones extract real text, once undisturbed, once while slices are preempted, a zone
has no chips, the API and storage fail, a disk is full, and a worker stands still whose stream is begun a
second time. Nobody brings a slice back manually: `tpu fleet monitor` does. Both leave the same shards,
byte for byte.
"""

from typing import Any

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CHIPS_PER_ZONE, FOUNDATION, SSH, spot, train
from rehearsal.scenario.scenario import Scenario

STREAMS = "gs://my-project-checkpoints/streams"
EIGHT: dict[str, Any] = {"name": "extract", "zones": ["us-east5-a", "us-east5-b"], "count": 8}


def extract(name: str, stream: str = STREAMS) -> str:
    """Return the command of an extraction from the small model."""
    return (
        f"extract qwen2.5-0.5b.toml --name {name} --stream {stream} --set model.weights=run:model@10 "
        "--set extract.batch_tokens=1024 --set extract.shard_bytes=100000"
    )


SCENARIO = Scenario(
    clock=20,
    settings={
        "fleet:ssh": SSH + " {node}-w{worker} {command}",
        "tpu:slices": [
            spot(
                "v6e-1",
                train("model", 10) + " --set optimizer.warmup_steps=2",
                "model",
                zones=["us-east5-a"],
                spot=False,
            )
        ],
    },
    steps=(
        *FOUNDATION,
        # A small model of our own, which the first slice trains; and real text: what Python's own library
        # says of itself.
        step.up("tpu"),
        step.command(r"""
        set -e
        mkdir -p /tmp/fleet
        python - <<'END'
        import ast, json, pathlib, sysconfig
        texts = []
        for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (said := ast.get_docstring(node)):
                    texts.append((f"{path.stem}:{node.lineno}", said[:500]))
        with open("/tmp/fleet/samples.jsonl", "w") as out:
            for name, text in texts[:3000]:
                print(json.dumps({"id": name, "text": text}), file=out)
        END
        workload data streams --source /tmp/fleet/samples.jsonl --id id --streams 8 \
          --out gs://my-project-checkpoints/streams
        """),
        step.done("model"),
        # The extraction that nobody disturbs.
        step.settings({"tpu:slices": [spot("v6e-8", extract("reference"), **EIGHT)]}),
        step.up("data"),
        step.quota(CHIPS_PER_ZONE, "us-east5-b", chips=8),
        step.command(
            "tpu doctor dev",
            prints=f"{CHIPS_PER_ZONE}: the settings ask for 32 spot chips, allowed are 8",
            fails=True,
        ),
        step.quota(CHIPS_PER_ZONE, "us-east5-b", chips=8192),
        step.up("tpu"),
        step.fleet("create"),
        step.command("tpu doctor dev", prints="nothing is missing"),
        step.extracted("reference", workers=8),
        step.settings(
            {"tpu:slices": [spot("v6e-8", extract("disturbed"), **EIGHT, fallbackZones=EIGHT["zones"])]}
        ),
        step.up("tpu"),
        step.fleet("create"),
        step.start("monitor", "tpu fleet monitor dev --monitor-interval 5 --port 8899"),
        # Shards take long to write from here on, so that faults find streams half done on a fast machine, too.
        # Heartbeats don't: their name is in the query.
        step.fault(
            "Cloud Storage is slow",
            what={"delay_s": 10.0},
            match={"method": "storage.objects.insert", "query": "^(?!.*name=)"},
            times=None,
        ),
        step.command(
            "tpu fleet exec dev -- sudo systemctl restart google-startup-scripts", prints="8 of 8 ok"
        ),
        step.shards("disturbed", 0, count=2),
        # A host's disk is full: what runs there continues, and is seen to have no room. It doesn't survive
        # its next boot, and the fleet replaces the host.
        step.fill("tpu-us-east5-b-1", "disturbed", worker=3),
        step.command(
            ("until tpu status dev | grep 'tpu-us-east5-b-1 .* its boot disk is full'; do sleep 2; done"),
        ),
        step.preempt("tpu-us-east5-a-0", "notice", run="disturbed"),
        step.fault(
            "there is no v6e left in us-east5-b",
            what={
                "operation_error": {
                    "code": "RESOURCE_EXHAUSTED",
                    "message": (
                        'There is no more capacity in the zone "us-east5-b"; you can try in another zone'
                    ),
                }
            },
            match={"method": "tpu.projects.locations.nodes.create", "path": "us-east5-b"},
        ),
        step.preempt("tpu-us-east5-b-0", "power-loss", run="disturbed"),
        step.fault(
            "the API answers 503 for a while",
            what={"status": 503},
            match={"method": "tpu.projects.locations.nodes.list", "path": "us-east5-a"},
            times=4,
        ),
        # A worker stands still in the middle of its stream; somebody starts that on another host.
        step.stall("tpu-us-east5-a-2", "disturbed", worker=4),
        step.command(
            f"{SSH} tpu-us-east5-b-3-w0 sudo systemd-run --unit=second "
            "-p EnvironmentFile=/etc/tpu/environment /opt/tpu/venv/bin/workload "
            + extract("disturbed", f"{STREAMS}/stream_004.safetensors")
        ),
        # In the other zone: a node made in us-east5-b would show that there are chips again.
        step.preempt("tpu-us-east5-a-3", "power-loss", run="disturbed"),
        step.reboot("tpu-us-east5-b-1", fails="the boot disk is full"),
        # The fleet's page in a browser; its price runs on the cloud's clock.
        step.page(
            "fleet", 8899, prints=r"(?s)slices<b>8</b>.*\$[1-9][0-9.]*<.*working.*shards.*disk is full"
        ),
        # It continues after the other took the lease, and must not act any more.
        step.command(
            f"{SSH} tpu-us-east5-b-3-w0 'while systemctl is-active --quiet second; do sleep 1; done'"
        ),
        step.wake("tpu-us-east5-a-2"),
        step.extracted("disturbed", workers=8),
        # The stream was begun elsewhere: the host gets its job back, and finds it done.
        step.command(
            f"{SSH} tpu-us-east5-a-2-w0 'sudo systemctl start tpu-job; "
            "while systemctl is-active --quiet tpu-job; do sleep 1; done'"
        ),
        step.stop(
            "monitor",
            prints=r"(?s)no more capacity.*b-1: replace \(its boot failed at bundle: the boot disk is full",
        ),
        step.alike("reference", "disturbed"),
        step.command("workload activations verify gs://my-project-checkpoints/extractions/disturbed"),
        # Its own zone had no chips: it is in the other, under the next free name there.
        step.command("tpu fleet list dev", prints="tpu-us-east5-a-4 +us-east5-a +READY"),
        step.command("tpu status dev", prints="8 done"),
        # Layers that members use aren't destroyed.
        step.destroy("network", refused="in use by 8 members of fleets"),
        step.destroy("tpu", refused="tpu fleet delete dev --orphans"),
        step.fleet("delete"),
        step.destroy("tpu"),
    ),
)
