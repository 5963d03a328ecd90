"""Pulls of images by nodes, and how the kubelet reports those that fail.

https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rehearsal.kubernetes.plane.api import Object

ERROR, BACK_OFF = "ErrImagePull", "ImagePullBackOff"


class Puller:
    """Pulls an image to a node once; `pull` returns the error, by their names."""

    def __init__(self, pull: Callable[[str, str], str]):
        self._pull = pull
        self._present: set[tuple[str, str]] = set()

    def errors(self, node: str, containers: Sequence[Object]) -> dict[str, str]:
        """Return the errors of pulls, by image; empty where every image is there."""
        errors = {}
        for image in dict.fromkeys(container["image"] for container in containers):
            if (node, image) in self._present:
                continue
            if error := self._pull(node, image):
                errors[image] = error
            else:
                self._present.add((node, image))
        return errors

    def forget(self, node: str) -> None:
        """Remove the images of a machine that is new under an old name."""
        self._present = {known for known in self._present if known[0] != node}


def waiting(containers: Sequence[Object], errors: Mapping[str, str], reason: str) -> list[Object]:
    """Return the statuses of containers that wait for images; `reason`: ERROR or BACK_OFF."""
    statuses = []
    for container in containers:
        image, state = container["image"], {"reason": "ContainerCreating"}
        if error := errors.get(image):
            back_off = f'Back-off pulling image "{image}": {ERROR}: {error}'
            state = {"reason": reason, "message": error if reason == ERROR else back_off}
        statuses.append({
            "name": container["name"], "image": image, "imageID": "", "ready": False, "restartCount": 0,
            "started": False, "state": {"waiting": state},
        })  # fmt: skip
    return statuses
