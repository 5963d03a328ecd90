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


def guide(scene: Scene) -> Guide:
    """The owner's, who knows the scenario's project and where its first slice is, or would be."""
    settings = read_settings(scene.program, scene.environment)
    slices, zones = settings["tpu:slices"], settings.get("tpu:zones")
    assert isinstance(slices, list)
    zone = str(slices[0]["zones"][0] if slices else zones[0] if isinstance(zones, list) else "")
    values = {"project": scene.bucket.project, "zone": zone, "region": zone.rpartition("-")[0]}
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    served = scene.control.access()["served"]
    return Guide(lambda: AuthorizedHttp(login, http=httplib2.Http()), served, values)


def request(scene: Scene, step: Request) -> None:
    """One request, which must be answered."""
    api, version, rest = step.method.split(".", 2)
    owner, method = guide(scene), f"{api}.{rest}"
    if not owner.serves(method):
        of_the_api = sorted(one for one in owner.served if one.startswith(f"{api}."))
        raise ScenarioFailed(f"{method} isn't emulated{nearest(method, of_the_api)}")
    owner.send(version, method, owner.fill(step.arguments, {}))


def tour(scene: Scene, step: Tour) -> None:
    """Every life of tour.yaml, one after the other."""
    owner = guide(scene)
    project = scene.bucket.project
    accounts = owner.send("v1", "iam.projects.serviceAccounts.list", {"name": f"projects/{project}"})
    owner.values["account"] = str(accounts["accounts"][0]["email"])
    every = lives()
    for number, life in enumerate(every):
        scene.note.text = f"{number} of {len(every)} lives, now {life.collection}"
        owner.take(life)
    scene.covers = step.covers
    scene.note.text = f"{len(set(owner.called))} of {len(owner.served)} methods, {len(owner.called)} requests"
    scene.record.checks.append(Check("every service has been called", scene.note.text))
