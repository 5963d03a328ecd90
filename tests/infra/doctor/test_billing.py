"""Grants on the billing account: of this login, and of the account that builds apply as."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.doctor import billing
from infra.doctor.finding import Finding
from infra.engine.settings import parse
from infra.google.client import Client
from infra.layers.builds.access import by_hand
from infra.layers.builds.names import email
from infra.settings.schema import Settings
from tests.emulated import EVERY_API, OWNER, Emulated, Session
from tests.infra.declared import EVERYTHING
from tests.infra.recording import BASE

PROJECT = BASE["gcp:project"]
ADA = "ada@example.com"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulated]:
    cloud = Emulated(tmp_path, PROJECT, enabled_apis=EVERY_API, currency="EUR")
    yield cloud
    cloud.close()


@pytest.fixture
def settings(cloud: Emulated) -> Settings:
    account = cloud.world.billing_account.partition("/")[2]
    given = {**BASE, **EVERYTHING, "monitoring:billingAccount": account}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in given.items()}
    return parse("dev", texts, "file")


def looked(cloud: Emulated, settings: Settings, who: str = OWNER) -> list[Finding]:
    return list(billing.check(Client(PROJECT, Session(cloud, who)), settings, "billing account"))


def test_builds_make_the_budget_once_the_printed_command_was_typed(
    cloud: Emulated, settings: Settings
) -> None:
    (line,) = by_hand(settings)
    (finding,) = looked(cloud, settings)
    assert (finding.state, finding.fix) == ("missing", line)
    words = shlex.split(line)
    assert words[:5] == ["gcloud", "billing", "accounts", "add-iam-policy-binding", words[4]]
    member, role = (word.partition("=")[2] for word in words[5:])
    name = f"projects/{PROJECT}/serviceAccounts/{email(settings)}"
    cloud.world.directory[name] = {"name": name, "email": email(settings)}
    cloud.grant(f"billingAccounts/{words[4]}", role, member)
    (finding,) = looked(cloud, settings)
    assert (finding.state, "EUR a month" in finding.detail) == ("ok", True)


def test_an_account_that_cannot_be_read_is_told_with_the_next_command(
    cloud: Emulated, settings: Settings
) -> None:
    (finding,) = looked(cloud, settings, ADA)
    account = cloud.world.billing_account.partition("/")[2]
    assert finding.state == "optional"
    assert f"{account} can't be read" in finding.detail
    assert finding.fix == (
        f"gcloud billing accounts add-iam-policy-binding {account} --member=user:YOU "
        "--role=roles/billing.costsManager"
    )
