"""Runs the tests of this folder inside the lab's network namespace."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.kubernetes.errors import KubernetesError
from rehearsal.kubernetes.programs import KUBERNETES, QUEUE, folder
from tests.kubernetes.lab import INSIDE, Lab


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if Path(__file__).parent not in pyfuncitem.path.parents:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    INSIDE.submit(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}).result()
    return True


@pytest.fixture(scope="session", name="lab")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    try:
        for tool in (KUBERNETES, QUEUE):
            folder(tool)
    except KubernetesError as error:
        pytest.skip(str(error))
    lab = INSIDE.submit(Lab, tmp_path_factory.mktemp("cluster")).result()
    yield lab
    INSIDE.submit(lab.close).result()
