"""Two teams train on a cluster, through a preemption by priority and a lost slice, to the same last bit.

From nothing to jobs that queue on a real Kubernetes with Kueue and JobSet: two teams and four jobs, a
preemption by priority, a slice that is preempted in the middle of training, maintenance, a program that
fails, what a team may not do, a slice that Google hasn't got for a while, pools that are removed and come
back, and nothing left at the end.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import (
    CLUSTER,
    FOUNDATION,
    IMAGES,
    NO_RESOURCES,
    QUEUE,
    READS_SECRET,
    SECRET,
    SECRET_SHA256,
    TEAMS,
    pool,
    train,
)
from rehearsal.scenario.scenario import Scenario

TRAIN = pool("train", "v6e-8", machineType="ct6e-standard-4t", count=2)
FLEX = pool("flex", "v6e-4", flexStart=True)
# Holds its slice until it is moved or preempted, for 90 s at most, and ends when it runs again: a shorter
# sleep is over before a busy machine has submitted the next job.
HOLD = "bash -c 'again=$CHECKPOINT_DIR/$HOSTNAME; [ -e $again ] || { touch $again; sleep 90; }'"
SCENARIO = Scenario(
    clock=60,
    control_planes=True,
    settings={
        **CLUSTER,
        "gke:namespaces": ["vision", "speech"],
        "gke:tpuPools": [TRAIN, FLEX],
        **QUEUE,
        "queue:install": "bundle",
        "queue:teams": [{**TEAMS[0], "secrets": ["hf-token"]}, *TEAMS[1:]],
    },
    steps=(
        *SECRET,
        *FOUNDATION,
        IMAGES,
        step.up("gke"),
        step.up("queue"),
        # A team's permissions, and the messages of its refusals.
        step.command("tpu job list dev vision", prints="no jobs"),
        step.command(
            "tpu job list dev speech",
            prints='ml-engineer@example.com" cannot list .* in the namespace "speech"',
            fails=True,
        ),
        step.command(
            "tpu job submit dev vision --slice v6e-64 -- train tiny.toml",
            prints="the nearest is --pool train .v6e-8.",
            fails=True,
        ),
        # What pods install at their start, for a check and for the run that is left alone; meanwhile an
        # image of it: from its Dockerfile, by what stands for Docker here.
        step.start(
            "bundle",
            (
                'tpu job submit dev vision --pool flex --name from-bundle -- python -c "import jax; '
                'print(jax.__version__)"'
            ),
        ),
        step.start(
            "still",
            f"tpu job submit dev vision --pool train --name still -- {train('still', 60, 20)}",
        ),
        step.unchanged("gke", "queue"),
        step.command(
            """
        # tpu job image, and the build
        set -eo pipefail
        tpu job image dev --out "$HOME/image"
        built=$(python -m rehearsal.kubernetes.node.docker "$HOME/image" --tag us-east5-docker.pkg.dev/my-project/images/workload)
        sed -i "s|queue:image: .*|queue:image: $built|; s|queue:install: .*|queue:install: image|" Pulumi.dev.yaml
        grep queue:i Pulumi.dev.yaml
        """,
            prints="queue:image: us-east5.*@sha256:[0-9a-f]{64}",
        ).by("platform-engineer"),
        step.stop("bundle", prints="(?s)(?=.*from-bundle: completed).*all match the manifest", wait=True),
        # A secret of one team: its job reads it; another team's is refused, and so is the account of its pods.
        step.start(
            "reads",
            f"tpu job submit dev vision --pool flex --name reads --secret hf-token -- bash -c '{READS_SECRET}'",
        ),
        step.command(
            "tpu job submit dev speech --pool flex --secret hf-token -- bash -c true",
            prints=r"(?s)hf-token.*/ns/speech/sa/trainer.*fix: secrets of speech in queue:teams: \[hf-token\], then tpu up",
            fails=True,
        ).by("ci"),
        step.start(
            "steals",
            "! tpu job submit dev speech --pool flex --name steals -- "
            "bash -c 'TPU_SECRETS=hf-token@latest:HF_TOKEN exec workload secrets -- true'",
        ).by("ci"),
        step.stop("still", prints="(?s)submitted.*running, 2 of 2 hosts.*still: completed", wait=True),
        step.stop("reads", prints=f"(?s)(?=.*reads: completed).*{SECRET_SHA256}", wait=True),
        # The same run, out of the image; its slice is taken away in the middle, and it continues at the
        # other one.
        step.start(
            "moved",
            f"tpu job submit dev vision --pool train --name moved -- {train('moved', 60, 20)}",
        ),
        step.reach("moved", 30),
        step.lose("train-0", how="notice", run="moved", for_s=1800),
        step.stop(
            "moved",
            prints="(?s)running.*restarted 1 time, 0 of them counted.*moved: completed",
            wait=True,
        ),
        step.resumed("moved", 20),
        step.same("still", "moved"),
        step.stop(
            "steals", prints="(?s)(?=.*steals: failed).*HTTP 403: this account may not.*fix: ", wait=True
        ),
        # Maintenance: a drained node spends no restart; and a program that fails ends its job at once.
        step.command(
            f"tpu job submit dev vision --pool train --name drained --detach -- {HOLD}",
            prints="submitted",
        ),
        step.start("broken", '! tpu job submit dev vision --pool train --name broken -- bash -c "exit 1"'),
        step.command(
            """
        # kubectl drain, as maintenance does
        set -eo pipefail
        pulumi -C infra/layers/gke stack output kubeconfig -s dev > "$HOME/kubeconfig"
        export KUBECONFIG=$HOME/kubeconfig
        kubectl wait -n vision --for=jsonpath='{.status.phase}'=Running pod -l jobset.sigs.k8s.io/jobset-name=drained --timeout=600s
        node=$(kubectl get pods -n vision -l jobset.sigs.k8s.io/jobset-name=drained -o jsonpath='{.items[0].spec.nodeName}')
        kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --force
        kubectl wait -n vision --for=condition=Completed jobset/drained --timeout=600s
        kubectl uncordon "$node"
        after=$(kubectl get pods -n vision -l jobset.sigs.k8s.io/jobset-name=drained -o jsonpath='{.items[*].spec.nodeName}')
        [[ -z $after || $after == *"${node%-*}"* ]] || echo "moved away"
        kubectl get jobset drained -n vision -o \
          jsonpath='restarts {.status.restarts}, counted {.status.restartsCountTowardsMax}'
        """,
            prints="(?s)moved away.*restarts [01], counted 0?$",
        ).by("platform-engineer"),
        step.stop("broken", prints="broken: failed", wait=True),
        # Two teams and four jobs on two slices: by priority, then by age.
        step.command(
            f"tpu job submit dev vision --pool train --name first --priority low --detach -- {HOLD}",
            prints="submitted",
        ),
        step.command(
            (
                "tpu job submit dev speech --pool train --name both --slices 2 --priority low "
                '--detach -- bash -c "sleep 3"'
            ),
            prints="submitted",
        ).by("ci"),
        step.command(
            f"tpu job submit dev vision --pool train --name second --detach -- {HOLD}",
            prints="submitted",
        ),
        step.command("tpu job list dev vision", prints="second +medium"),
        step.command(
            (
                "tpu job submit dev speech --pool train --name urgent --slices 2 --priority high -- "
                'bash -c "sleep 3"'
            ),
            prints="urgent: completed",
        ).by("ci"),
        # A slice that Google hasn't got for a while; meanwhile the four continue.
        step.fault(
            "there is no v6e for flex-start",
            what=NO_RESOURCES,
            match={"method": "container.autoscaler.scaleUp"},
            times=2,
        ),
        step.start("patient", 'tpu job submit dev vision --pool flex --name patient -- bash -c "true"'),
        step.command(
            """
        # in which order the four ended
        set -eo pipefail
        export KUBECONFIG=$HOME/kubeconfig
        for job in vision/first vision/second speech/both; do
          kubectl wait -n "${job%/*}" --for=condition=Completed "jobset/${job#*/}" --timeout=600s
        done
        kubectl get jobsets -A -o json | python -c "
        import json, sys
        ended = sorted(
            (condition['lastTransitionTime'], one['metadata']['name'])
            for one in json.load(sys.stdin)['items']
            for condition in one['status']['conditions']
            if condition['type'] == 'Completed' and one['metadata']['name'] in ('first', 'second', 'both', 'urgent'))
        print(*(name for _, name in ended))"
        """,
            prints="(?m)^urgent (first second|second first) both$",
        ).by("platform-engineer"),
        step.stop("patient", prints="(?s)starting, 0 of 1 host.*patient: completed", wait=True),
        # The output of kubectl.
        step.command(
            """
        # kubectl get, describe, logs, and the pending list
        set -eo pipefail
        export KUBECONFIG=$HOME/kubeconfig
        kubectl get nodes -L cloud.google.com/gke-nodepool,tpu-provisioning
        kubectl get clusterqueues,localqueues,resourceflavors,workloads,jobsets -A
        kubectl describe jobset moved -n vision
        kubectl logs -n vision -l jobset.sigs.k8s.io/jobset-name=moved --tail=3 --prefix
        kubectl get --raw /apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/tpu/pendingworkloads
        """,
            prints="PendingWorkloadsSummary",
        ).by("platform-engineer"),
        # Pools go, and come back; the queue's quota with them.
        step.settings({"gke:tpuPools": [{**TRAIN, "count": 0}, {**FLEX, "count": 0}]}),
        step.up("gke"),
        step.up("queue"),
        step.command(
            """
        # nodes with TPUs
        set -eo pipefail
        KUBECONFIG=$HOME/kubeconfig kubectl get nodes -l cloud.google.com/gke-tpu-accelerator -o name | wc -l
        """,
            prints="^0$",
        ).by("platform-engineer"),
        step.settings({"gke:tpuPools": [TRAIN, FLEX]}),
        step.up("gke"),
        step.up("queue"),
        step.command(
            'tpu job submit dev vision --pool train --name again -- bash -c "true"', prints="again: completed"
        ),
        # Nothing goes under a job, and nothing is left at the end.
        step.command(
            'tpu job submit dev vision --pool train --name last --detach -- bash -c "sleep 300"',
            prints="submitted",
        ),
        step.destroy("queue", refused="job"),
        step.command("tpu job cancel dev vision last --yes", prints="cancelled"),
        step.destroy("queue"),
        step.command(
            """
        # what the queue layer left in the cluster
        set -eo pipefail
        export KUBECONFIG=$HOME/kubeconfig
        kubectl get crds,namespaces,clusterroles,clusterrolebindings,persistentvolumes -o name >"$HOME/left"
        kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o name >>"$HOME/left"
        kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings -o name >>"$HOME/left"
        grep -q clusterrole "$HOME/left"
        grep -cE 'kueue|jobset|tpu-jobs|/(vision|speech)' "$HOME/left" || true
        """,
            prints="^0$",
        ).by("platform-engineer"),
        step.destroy("gke"),
        step.command("tpu job list dev", prints="there is no cluster tpu in us-east5", fails=True).by(
            "platform-engineer"
        ),
        step.command(
            "tpu job list dev",
            prints="no access to the cluster tpu: .*container.clusters.get.* denied",
            fails=True,
        ),
    ),
)
