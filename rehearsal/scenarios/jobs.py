"""Training over two slices and an extraction in JobSets, one slice preempted in the middle.

The programs of a JobSet, each for real: training over two slices of two hosts, and an extraction on two
slices of one host each. One slice is preempted in the middle of training. The curves reach Vertex AI
TensorBoard.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import CLUSTER, FOUNDATION, IMAGES, QUEUE, TEAMS, pool, train
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    settings={
        **CLUSTER,
        "gke:namespaces": ["vision", "speech"],
        "gke:workloadRoles": ["roles/logging.logWriter", "roles/aiplatform.user"],
        "gke:tpuPools": [
            pool("train", "v6e-8", machineType="ct6e-standard-4t", count=2),
            pool("single", "v6e-4", count=2),
        ],
        **QUEUE,
        "queue:teams": TEAMS,
    },
    steps=(
        step.request(
            "serviceusage.v1.services.enable",
            arguments={"name": "projects/$project/services/aiplatform.googleapis.com", "body": {}},
        ),
        *FOUNDATION,
        IMAGES,
        step.up("gke"),
        step.up("queue"),
        # As `gcloud ai tensorboards create` by the project's owner, and the setting with the name that
        # Vertex gave it.
        step.command(
            r"""
        # a TensorBoard of Vertex AI
        set -e
        board=$(GOOGLE_APPLICATION_CREDENTIALS=$HOME/owner.json python - <<'END'
        import google.auth, time
        from google.auth.transport.requests import AuthorizedSession
        google = AuthorizedSession(google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])[0])
        url = "https://us-east5-aiplatform.googleapis.com/v1"
        made = google.post(f"{url}/projects/my-project/locations/us-east5/tensorboards", json={"displayName": "teams"}).json()
        while not made.get("done"):
            time.sleep(0.5)
            made = google.get(f"{url}/{made['name']}").json()
        print(made["response"]["name"])
        END
        )
        sed -i "s|^  queue:image:.*|&\n  storage:tensorboard: $board|" Pulumi.dev.yaml
        grep storage:tensorboard: Pulumi.dev.yaml
        """,
            prints=r"tensorboards/\d+",
        ).by("platform-engineer"),
        # Two slices of two hosts are one job.
        step.command(
            f"tpu job submit dev vision --pool train --slices 2 --name still -- {train('still', 60, 10)}",
            prints="(?s)2 x v6e-8.*running, 4 of 4 hosts.*still: completed",
        ),
        step.start(
            "moved",
            f"tpu job submit dev vision --pool train --slices 2 --name moved -- {train('moved', 60, 10)}",
        ),
        step.reach("moved", 20),
        step.lose("train-1", how="notice", run="moved", for_s=1200),
        step.stop(
            "moved",
            prints="(?s)running.*restarted 1 time, 0 of them counted.*moved: completed",
            wait=True,
        ),
        step.resumed("moved", 10),
        step.same("still", "moved"),
        # Their curves were uploaded, the last points at the end.
        step.command(
            """
        # what Vertex shows of both
        GOOGLE_APPLICATION_CREDENTIALS=$HOME/owner.json python - <<'END'
        import re, struct, time
        import google.auth
        from google.auth.transport.requests import AuthorizedSession
        from workload.runs.step_log import read_losses
        from workload.runs.store import open_store
        google = AuthorizedSession(google.auth.default(["https://www.googleapis.com/auth/cloud-platform"])[0])
        board = re.search("storage:tensorboard: (.*)", open("Pulumi.dev.yaml").read())[1]
        url = f"https://us-east5-aiplatform.googleapis.com/v1/{board}/experiments/vision/runs"
        for run in ("still", "moved"):
            losses = read_losses(open_store(f"gs://my-project-checkpoints/runs/{run}"))
            exact = {step: struct.unpack("f", struct.pack("f", loss))[0] for step, loss in losses.items()}
            for attempt in range(60):
                found = google.get(f"{url}/{run}/timeSeries/loss:read?maxDataPoints=-1").json()
                values = found.get("timeSeriesData", {}).get("values", [])
                if {int(one["step"]): one["scalar"]["value"] for one in values} == exact:
                    print(f"{run}: {len(exact)} losses at Vertex, as the run has them")
                    break
                time.sleep(1)
            else:
                print(run, found, exact)
        END
        """,
            prints="(?s)still: 60 losses at Vertex.*moved: 60 losses at Vertex",
        ).by("platform-engineer"),
        # Activations of the model for text, by two slices of one host, each with its own stream.
        step.command("""
        # text as a stream of tokens
        set -e
        python - > /tmp/samples.jsonl <<'END'
        import json, this
        for number, line in enumerate(this.s.splitlines() * 20):
            print(json.dumps({"id": f"line-{number}", "text": line or "empty"}))
        END
        sed -i '/^{/!d' /tmp/samples.jsonl
        workload data streams --source /tmp/samples.jsonl --id id --streams 2 --out gs://my-project-checkpoints/streams
        """),
        step.command(
            (
                "tpu job submit dev speech --pool single --slices 2 --name extract -- extract "
                "qwen2.5-0.5b.toml --name pods --stream gs://my-project-checkpoints/streams --set "
                "model.weights=run:still@60 --set extract.batch_tokens=1024 --set "
                "extract.shard_bytes=100000"
            ),
            prints="(?s)running, 2 of 2 hosts.*extract: completed",
        ).by("ci"),
        step.extracted("pods", workers=2),
        step.command("workload activations verify gs://my-project-checkpoints/extractions/pods"),
    ),
)
