"""Runs the tests of this folder inside the lab's network namespace, or their module's own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.plane.programs import KUBERNETES, QUEUE, folder
from tests.rehearsal.kubernetes.lab import INSIDE, Lab


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if Path(__file__).parent not in pyfuncitem.path.parents:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    inside = getattr(pyfuncitem.module, "INSIDE", INSIDE)
    inside.submit(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}).result()
    return True


@pytest.fixture(scope="session", name="programs")
def _programs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    try:
        for tool in (KUBERNETES, QUEUE):
            folder(tool)
    except KubernetesError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", name="lab")
def _lab(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = INSIDE.submit(Lab, tmp_path_factory.mktemp("cluster")).result()
    yield lab
    INSIDE.submit(lab.close).result()


@pytest.fixture(scope="module", autouse=True)
def _ready_for_a_module(request: pytest.FixtureRequest) -> None:
    _ready(request)


@pytest.fixture(autouse=True)
def _ready_for_a_test(request: pytest.FixtureRequest) -> None:
    _ready(request)


def _ready(request: pytest.FixtureRequest) -> None:
    """On a busy machine a controller may have lost its lease in an earlier test, and start again."""
    if "lab" in request.fixturenames:
        INSIDE.submit(request.getfixturevalue("lab").ready).result()
