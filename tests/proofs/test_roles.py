"""One role of those that `python -m tests.proofs roles` takes away."""

import os

import pytest

from infra.engine.roles import PLATFORM
from tests.infra.engine.test_kills import names_of_programs
from tests.proofs.roles import WITHOUT_ASKING, office, storage


@pytest.mark.slow
def test_without_a_role_up_fails_and_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{names_of_programs()}{os.pathsep}{os.environ['PATH']}")
    role = storage()[0]
    with office() as item:
        missed = item.missed(PLATFORM, role, "up", "dev", "storage", *WITHOUT_ASKING)
    assert missed.said.startswith(
        f"fix: grant the account that you are logged in as {role.name}, which holds "
    )
