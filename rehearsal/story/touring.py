"""The tour as a step: what its lives refer to is the story's own."""

from __future__ import annotations

import httplib2
from google.oauth2.credentials import Credentials
from google_auth_httplib2 import AuthorizedHttp

from rehearsal.story.record import Check
from rehearsal.story.scene import Scene
from rehearsal.story.tour import Guide, lives
from rehearsal.story.tour_steps import Tour
from rehearsal.world import person
from rehearsal.world.program import read_settings


def tour(scene: Scene, step: Tour) -> None:
    """Every life of tour.yaml, one after the other."""
    settings = read_settings(scene.program, scene.environment)
    slices = settings["tpu:slices"]
    assert isinstance(slices, list)
    zone = str(slices[0]["zones"][0])
    project = scene.bucket.project
    values = {"project": project, "zone": zone, "region": zone.rpartition("-")[0]}
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    served = scene.control.access()["served"]
    guide = Guide(lambda: AuthorizedHttp(login, http=httplib2.Http()), served, values)
    accounts = guide.send("v1", "iam.projects.serviceAccounts.list", {"name": f"projects/{project}"})
    values["account"] = str(accounts["accounts"][0]["email"])
    every = lives()
    for number, life in enumerate(every):
        scene.note.text = f"{number} of {len(every)} lives, now {life.collection}"
        guide.take(life)
    scene.covers = step.covers
    scene.note.text = f"{len(set(guide.called))} of {len(served)} methods, {len(guide.called)} requests"
    scene.record.checks.append(Check("every service has been called", scene.note.text))
