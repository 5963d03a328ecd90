"""A program in your own container image runs on four hosts, is preempted with notice, and resumes.

`tpu run --image`: hosts pull the image by its digest from Artifact Registry, as their own account, and start
the program in it. Images that can't run are refused, before a slice is billed where that can be known.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.parts import DIGEST, FOUNDATION, IMAGES
from rehearsal.scenario.scenario import Scenario
from rehearsal.scenario.step import Step

REPOSITORY = "us-east5-docker.pkg.dev/my-project/images"


def _refused(image: str, prints: str, more: str = "") -> Step:
    """Return the step in which `tpu run` refuses an image."""
    script = "rehearsal/scenarios/code/count.py"
    command = f"tpu run dev {script} --image {image} --slice v6e-1 {more} --yes"
    return step.command(command, prints=prints, fails=True)


SCENARIO = Scenario(
    clock=20,
    settings={"tpu:slices": [], "tpu:zones": ["us-east5-b"], "storage:repositories": [REPOSITORY]},
    steps=(
        step.request(
            "serviceusage.v1.services.enable",
            arguments={"name": "projects/$project/services/artifactregistry.googleapis.com", "body": {}},
        ),
        IMAGES,
        step.image(f"{REPOSITORY}/python"),
        *FOUNDATION,
        step.up("tpu"),
        _refused(f"{REPOSITORY}/python:latest", "(?s)--image = .*with its digest.*fix: .*crane digest"),
        _refused(f"docker.io/library/python@{DIGEST}", "reach Google's registries alone"),
        _refused(
            f"{REPOSITORY}/python@{DIGEST}", "(?s)no such image.*gcloud artifacts docker images list"
        ).by("platform-engineer"),
        _refused("$(cat image.txt)", "an image has packages of its own", "--requirements README.md"),
        # Hosts find out what only the image shows; a new host wouldn't help.
        step.command(
            "tpu run dev --image $(cat image.txt) --name bash --slice v6e-1 --stop-when-done --yes -- bash -c true",
            prints="(?s)has no `bash`: name a program of the image.*its slice is deleted",
            fails=True,
        ),
        step.start(
            "run",
            "tpu run dev rehearsal/scenarios/code/count.py --image $(cat image.txt) --name own --slice v6e-16 "
            "--env GREETING=hello --stop-when-done --yes",
        ),
        step.logged(
            "tpu-us-east5-b-0", 4, prints=r"in a container, worker \d of 4, hello; from the beginning"
        ),
        step.logged("tpu-us-east5-b-0", 4, prints=r"saved \d+"),
        step.preempt("tpu-us-east5-b-0", "notice", run="own"),
        step.logged("tpu-us-east5-b-0", 4, prints=r"hello; resumed at [1-9]\d+"),
        step.stop(
            "run",
            prints=r"(?s)replace .*resumed at.*counted to 600.*own: done after.*its slice is deleted",
            wait=True,
        ),
        step.destroy("tpu"),
    ),
)
