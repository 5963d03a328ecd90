"""The owner's steps: the tour, whose lives refer to the scenario's own; single requests."""

from __future__ import annotations

import httplib2
from google.oauth2.credentials import Credentials
from google_auth_httplib2 import AuthorizedHttp

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.reading import nearest
from rehearsal.scenario.record import Check
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.tour import Guide, lives
from rehearsal.scenario.tour_steps import Request, Tour
from rehearsal.world import person
from rehearsal.world.program import read_settings


def _guide(scene: Scene) -> Guide:
    """The owner's, who knows the scenario's project and where its first slice is."""
    slices = read_settings(scene.program, scene.environment)["tpu:slices"]
    assert isinstance(slices, list)
    zone = str(slices[0]["zones"][0])
    values = {"project": scene.bucket.project, "zone": zone, "region": zone.rpartition("-")[0]}
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    served = scene.control.access()["served"]
    return Guide(lambda: AuthorizedHttp(login, http=httplib2.Http()), served, values)


def request(scene: Scene, step: Request) -> None:
    """One request, which must be answered."""
    api, version, rest = step.method.split(".", 2)
    guide, method = _guide(scene), f"{api}.{rest}"
    if not guide.serves(method):
        of_the_api = sorted(one for one in guide.served if one.startswith(f"{api}."))
        raise ScenarioFailed(f"{method} isn't emulated{nearest(method, of_the_api)}")
    guide.send(version, method, guide.fill(step.arguments, {}))


def tour(scene: Scene, step: Tour) -> None:
    """Every life of tour.yaml, one after the other."""
    guide = _guide(scene)
    project = scene.bucket.project
    accounts = guide.send("v1", "iam.projects.serviceAccounts.list", {"name": f"projects/{project}"})
    guide.values["account"] = str(accounts["accounts"][0]["email"])
    every = lives()
    for number, life in enumerate(every):
        scene.note.text = f"{number} of {len(every)} lives, now {life.collection}"
        guide.take(life)
    scene.covers = step.covers
    scene.note.text = f"{len(set(guide.called))} of {len(guide.served)} methods, {len(guide.called)} requests"
    scene.record.checks.append(Check("every service has been called", scene.note.text))
