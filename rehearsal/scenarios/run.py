"""A single command trains your own script on a slice, through a preemption, and takes the slice down.

`tpu run`: one command takes a script of somebody's own to a slice, brings it back after a preemption, and
takes the slice down when the script has ended. The script knows nothing of this project.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import FOUNDATION
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step


def _replaced(steps: int, flag: str, prints: str) -> Step:
    """Return the step that replaces the program `edited` by one of so many steps."""
    return step.command(
        f"""
        set -e
        mkdir -p /tmp/edited
        sed 's/STEPS = 600/STEPS = {steps}/' rehearsal/scenarios/code/train.py > /tmp/edited/train.py
        cp rehearsal/scenarios/code/requirements.txt /tmp/edited
        tpu run dev /tmp/edited --name edited --slice v6e-1 {flag} --replace --yes
        """,
        prints=prints,
    )


SCENARIO = Scenario(
    clock=20,
    settings={"tpu:code": "rehearsal/scenarios/code", "tpu:slices": [], "tpu:zones": ["us-east5-b"]},
    steps=(
        *FOUNDATION,
        step.up("tpu"),
        step.command(
            "tpu run dev rehearsal/scenarios/code --slice v6e-17 --yes",
            prints="(?s)--slice v6e-17: is none of v6e-1, .*fix: one of these",
            fails=True,
        ),
        step.start(
            "run", "tpu run dev rehearsal/scenarios/code --name own --slice v6e-16 --stop-when-done --yes"
        ),
        step.logged("tpu-us-east5-b-0", 4, prints="einops 0.8.2; from the beginning"),
        step.ready("tpu-us-east5-b-0"),
        step.command("tpu status dev", prints="tpu-us-east5-b-0 .*READY"),
        step.start("watch", "tpu status dev --watch --monitor-interval 2 --port 8899"),
        step.logged("tpu-us-east5-b-0", 4, prints=r"step \d{2,} of 600"),
        step.preempt("tpu-us-east5-b-0", "power-loss", run="own"),
        step.logged("tpu-us-east5-b-0", 4, prints=r"einops 0.8.2; resumed at step [1-9]\d+"),
        step.logged("tpu-us-east5-b-0", 4, prints=r"step [2-5]\d\d of 600"),
        # The status page meanwhile; its price runs on the cloud's clock.
        step.page("fleet", 8899, prints=r"(?s)\$[1-9][0-9.]*<.*working"),
        step.stop("watch", prints="recovering"),
        step.stop(
            "run",
            prints=(
                r"(?s)replace \(Google says PREEMPTED\).*resumed at step.*step 600 of 600.*own: done "
                "after.*its slice is deleted"
            ),
            wait=True,
        ),
        step.command("tpu fleet list dev", prints="no nodes"),
        # The same program again, as it is edited: while its hosts boot, and once they work. They take the
        # new code, without another boot, and the job is restarted.
        step.command(
            (
                "tpu run dev rehearsal/scenarios/code/train.py --requirements "
                "rehearsal/scenarios/code/requirements.txt --name edited --slice v6e-1 --detach --yes"
            ),
            prints=r"detached; tpu-us-east5-b-\d is [A-Z]+, and billed",
        ),
        _replaced(450, "--detach", prints="(?s)restarted on 1 worker after.*detached"),
        step.logged("tpu-us-east5-b-0", 1, prints=r"step \d{2,} of 450"),
        step.ssh(
            "tpu-us-east5-b-0",
            'for stage in identity python code; do grep -c "stage $stage: ok" /var/log/tpu/boot.log; done',
            prints=r"1\s+1\s+2\s",
        ),
        # Where the whole startup script and two restarts took minutes.
        _replaced(30, "--detach", prints=r"(?s)restarted on 1 worker after \d\d?\.\d s.*detached"),
        step.command("until tpu status dev | grep 'tpu-us-east5-b-0 .* done'; do sleep 2; done"),
        # The end of the one before is none of it: it works to its own, from the checkpoint of the 450.
        _replaced(500, "--stop-when-done", prints="(?s)restarted on 1 worker.*step 500 of 500.*is deleted"),
        step.destroy("tpu"),
    ),
)
