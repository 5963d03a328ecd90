"""Four stacks, four hosts, two preemptions, and the same loss to the last bit.

The scenario of `make rehearse`: everything once, from nothing to a run that was killed twice, moved to a
second slice, and ended bit for bit where an undisturbed one ended.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import NO_CAPACITY, spot, train
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=20,
    token_lifetime_s=300,  # shorter than the scenario: every client must renew its own
    settings={"tpu:slices": [spot("v6e-16", train("reference", 100, 20))]},
    steps=(
        step.preview().by("ci"),
        # Four stacks, while storage stumbles and there is no capacity at first.
        step.up("storage"),
        step.fault(
            "Cloud Storage answers 503 to uploads of the bundle",
            what={"status": 503},
            match={"method": "storage.objects.insert"},
            when={"after": 2},
            times=2,
        ),
        step.publish("cpu").by("ci"),
        step.up("network", "data"),
        # A running stack is changed in place.
        step.settings(
            {
                "network:cloudNat": True,
                "network:sshSourceRanges": ["35.235.240.0/20", "10.0.0.0/24"],
                "data:throughputMibps": 3000,
                "data:labels": {"team": "research"},
                "storage:labels": {"team": "research"},
            }
        ),
        step.up("storage"),
        step.up("network", "data"),
        step.unchanged("storage", "network", "data"),
        step.fault(
            "there is no v6e left in the zone",
            what=NO_CAPACITY,
            match={"method": "tpu.projects.locations.nodes.create"},
        ),
        step.up("tpu", refused="no more capacity"),
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.ssh(
            "tpu-dev",
            (
                'ls /mnt/data/manifest.json /mnt/checkpoints/bundles && echo "worker $WORKER_ID of '
                '$WORKER_COUNT"'
            ),
            prints="worker [0-3] of 4",
        ),
        # The run that nobody disturbs.
        step.done("reference"),
        step.unchanged("tpu"),
        # Another job on the same hosts: the same run, killed twice.
        step.settings({"tpu:slices": [spot("v6e-16", train("interrupted", 100, 20))]}),
        step.up("tpu").by("ci"),
        step.ssh("tpu-dev", "sudo systemctl restart google-startup-scripts"),
        step.ready("tpu-dev"),
        step.kill("tpu-dev", "notice", run="interrupted", between=(10, 35)),
        step.recover("tpu-dev"),
        # Late enough that the save of step 40 is complete, on a slow machine too.
        step.kill("tpu-dev", "power-loss", run="interrupted", between=(65, 80)),
        # The slice is destroyed; the bucket stays, and another slice resumes from it.
        step.remember("runs/", "bundles/"),
        step.destroy("tpu"),
        step.survived(),
        # All is protected, and the first to refuse hide the bucket: with it alone, it is what refuses.
        step.command("""
        # take every protection off but the bucket's
        set -eo pipefail
        stack() { pulumi -C infra/layers/storage stack "$@" -s dev; }
        stack export | python -c "
        import json, sys
        state = json.load(sys.stdin)
        for one in state['deployment']['resources']:
            if not one['urn'].endswith('::my-project-checkpoints'):
                one.pop('protect', None)
        json.dump(state, sys.stdout)" > "$HOME/state.json"
        stack import --file "$HOME/state.json"
        """).by("platform-engineer"),
        step.destroy(
            "storage", refused='(?s)bucket:Bucket::my-project-checkpoints" cannot be deleted.*protected'
        ),
        step.survived(),
        step.up("storage"),
        step.up("tpu"),
        step.ready("tpu-dev"),
        step.done("interrupted"),
        step.resumed("interrupted", 40),
        step.same("reference", "interrupted"),
        # The job that is switched off here gives its lease back when it can: its run isn't compared.
        step.remember("runs/reference/", "bundles/"),
        step.destroy("tpu"),
        step.destroy("data"),
        step.destroy("network"),
        step.survived(),
    ),
)
