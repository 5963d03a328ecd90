"""Each alert on hosts, runs and buckets fires once, by its fault, and closes once that is fixed.

The alerts that no step of the pipeline fires (`pipeline_faults` has the other five), each by its fault
on hosts that boot. `fired` fails on any other alert, and on a second incident of one: what isn't listed
stayed quiet.  The clock chooses what can fire. A host knows the real time alone, so it reports each 30 or
60 seconds whatever the clock's rate. At 80 that is too seldom for the alerts on means: one heartbeat has
left their window before the next comes, and only counted events fire. At 25 the windows of a quarter of
an hour or more hold one heartbeat after the other, at 4.8 those of five minutes do as well.  Less than
real is one thing: a minute of the idle host (`chips-idle` counts 25 of them) lasts two seconds.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import ALERT_TOPIC, FOUNDATION, SSH, SUBSCRIBE, spot, train
from rehearsal.scenario.scenario import Scenario

ALERTS = [
    {"name": name, "threshold": threshold}
    for name, threshold in (
        ("job-failing", 1), ("run-stalled", 60), ("checkpoint-old", 120), ("goodput-low", 25),
        ("preemption-storm", 2),
    )
]  # fmt: skip
SCENARIO = Scenario(
    clock=80,
    settings={
        **ALERT_TOPIC,
        "monitoring:alerts": ALERTS,
        "tpu:slices": [
            spot("v6e-1", 'python -c "import absent"', "fails"),
            spot("v6e-1", train("saves", 300, 1000) + " --set checkpoint.timeout_s=80", "saves"),
            spot(
                "v6e-1",
                train("slow", 100000, 100000) + " --set data.path=/mnt/checkpoints/text "
                "--set data.sequence_length=512 --set train.batch_size=2",
                "slow",
            ),
            spot(
                "v6e-4",
                "train tiny.toml --name diverges --set optimizer.learning_rate=1e30",
                "diverges",
                count=1,
            ),
        ],
    },
    steps=(
        *FOUNDATION,
        step.command(
            """
        # token files in the bucket
        set -e
        cd "$(mktemp -d)"
        mkdir source
        cp "$(python -c 'import sysconfig; print(sysconfig.get_paths()["stdlib"])')"/*.py source
        workload data prepare --source source --out text
        python - <<'END'
        from pathlib import Path
        from google.cloud import storage
        bucket = storage.Client().bucket("my-project-checkpoints")
        for path in Path("text").iterdir():
            bucket.blob(f"text/{path.name}").upload_from_filename(path)
            print(f"{path.name}: {path.stat().st_size} bytes")
        END
        """,
            prints=r"tokens-00000.bin: \d{7} bytes",
        ),
        # `tpu up` waits for the agent that comes with the first channel.
        step.command("tpu up dev monitoring --yes", prints="up; next").by("platform-engineer"),
        SUBSCRIBE,
        # The project's owner takes public access prevention off and opens a bucket; both alerts are about
        # that. To close it changes its access again: within the five minutes of one incident.
        step.clock(10),
        step.command("""
        # a bucket is opened to everybody
        GOOGLE_APPLICATION_CREDENTIALS=$HOME/owner.json python - <<'END'
        from google.cloud import storage
        bucket = storage.Client().get_bucket("my-project-checkpoints")
        bucket.iam_configuration.public_access_prevention = "inherited"
        bucket.patch()
        policy = bucket.get_iam_policy(requested_policy_version=3)
        policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"allUsers"}})
        bucket.set_iam_policy(policy)
        END
        """).by("platform-engineer"),
        step.fired(
            {"bucket-public": "member: allUsers", "bucket-access-changed": "storage.setIamPermissions"},
            subscription="oncall",
            mend="""
        GOOGLE_APPLICATION_CREDENTIALS=$HOME/owner.json python - <<'END'
        from google.cloud import storage
        bucket = storage.Client().get_bucket("my-project-checkpoints")
        policy = bucket.get_iam_policy(requested_policy_version=3)
        policy.bindings = [one for one in policy.bindings if "allUsers" not in one["members"]]
        bucket.set_iam_policy(policy)
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.patch()
        END
        """,
            clock=600,
        ),
        step.clock(80),
        step.fault(
            "each read of the token file takes two seconds",
            what={"delay_s": 2},
            match={
                "method": "storage.objects.get",
                "path": "^/download/.*text(%2F|/)tokens-",
                "principal": "tpu-training@*",
            },
            times=None,
        ),
        step.fault(
            "no checkpoint of one run is taken",
            what={"status": 503},
            match={
                "method": "storage.objects.insert",
                "query": "runs(%2F|/)saves(%2F|/)checkpoints",
                "principal": "tpu-training@*",
            },
            times=None,
        ),
        step.up("tpu"),
        step.fleet("create"),
        # A program that can't start is started again and again, until somebody stops it; one that diverged
        # is not.
        step.fired(
            {
                "job-failing": "fails-w0 .*No module named 'absent'",
                "loss-not-finite": "us-east5-b-0-w0 .* loss-not-finite ",
            },
            subscription="oncall",
            mend=f"{SSH} fails-w0 sudo systemctl stop tpu-job",
            clock=600,
        ),
        # Storage is slow, so a run waits for its examples and makes few steps. The host whose run has
        # diverged is still up, idle and paid for; the fleet's limit is set below what it alone costs, and
        # above what all others do.
        step.settings({"monitoring:alerts": [*ALERTS, {"name": "spend-high", "threshold": 5}]}),
        step.clock(25),
        step.up("monitoring"),
        step.ssh(
            "tpu-us-east5-b-0",
            """
        # a minute lasts two seconds
        sudo mkdir -p /run/systemd/system/tpu-logs.service.d
        sudo tee /run/systemd/system/tpu-logs.service.d/minute.conf <<'END'
        [Service]
        ExecStart=
        ExecStart=/opt/tpu/venv/bin/python -c "from workload.host import __main__ as host, logs; logs._ALIVE_EVERY_S = 2; host.main()" logs --cursor /var/lib/tpu-logs/cursor
        END
        sudo systemctl daemon-reload
        sudo systemctl restart tpu-logs
        """,
        ),
        step.fired(
            {
                "data-stall": r"slow +gs://my-project-checkpoints/runs/slow +0\.[2-9]",
                "goodput-low": r"slow +us-east5-b +READY +working +\d+ of 100,000 +[\d.]+ +\d%",
                "chips-idle": "tpu-us-east5-b-0 +us-east5-b +READY +failed .*not finite",
                "spend-high": "diverges +1 +v6e-4",
            },
            subscription="oncall",
            mend=f"""
        set -e
        {SSH} slow-w0 sudo systemctl stop tpu-job
        tpu fleet delete dev --slice diverges --yes
        """,
            clock=600,
        ),
        # All steps are done, and the run stands still: no save of it succeeds.
        step.clock(4.8),
        step.fired(
            {
                "checkpoint-failed": "saves-w0 .* save-failed .*can't be saved: storage answers HTTP 503",
                "checkpoint-old": "saves-w0 .* save-failed .*no checkpoint was saved before",
                "run-stalled": "saves +us-east5-b +READY +working +300 of 300",
            },
            subscription="oncall",
            mend=(f"{SSH} saves-w0 'sudo systemctl kill --signal=KILL tpu-job; sudo systemctl stop tpu-job'"),
            clock=600,
            timeout_s=300,
        ),
        step.clock(80),
        step.preempt("fails", "power-loss", run="fails"),
        step.preempt("saves", "power-loss", run="saves"),
        step.preempt("slow", "power-loss", run="slow"),
        step.fired(
            {
                "preemption-storm": (
                    "(?s)fails +us-east5-b +PREEMPTED.*saves +us-east5-b +PREEMPTED.*slow +us-east5-b "
                    "+PREEMPTED"
                )
            },
            subscription="oncall",
            clock=1200,
        ),
    ),
)
