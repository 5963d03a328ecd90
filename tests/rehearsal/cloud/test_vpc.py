"""The firewall follows firewalls and tags as the APIs change them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_lab import NETWORK, PROJECT, Lab, node_body, open_lab

from rehearsal.cloud.services.compute.firewall import enforce
from rehearsal.hosts.firewall import Firewall, Rule, Vpc
from tests.limits import HANG_S

TAGGED = {"allowed": [{"IPProtocol": "tcp", "ports": ["8476"]}], "sourceTags": ["a"], "targetTags": ["b"]}


class Recorder(Firewall):
    """A firewall that holds nothing up."""

    rules: tuple[Rule, ...] = ()

    def apply(self, networks: Sequence[Vpc]) -> None:
        self.rules = networks[0].rules if networks else ()


async def test_rules_follow_what_is_declared(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        firewall = Recorder("br", ())
        following = asyncio.create_task(enforce(lab.world, lab.tpu.members, firewall))
        await lab.ready("one", acceleratorType="v6e-1", tags=["a"])
        await lab.ready("two", acceleratorType="v6e-1", tags=["b"])
        await lab.compute("firewalls", {}, {"name": "f", "network": NETWORK, **TAGGED})
        item, two, traffic = "10.128.0.2", "10.128.0.3", (("tcp", ("8476",)),)
        await until(firewall, Rule(False, True, 1000, (item,), (two,), traffic))
        await tag(lab, "one", ["a", "b"])
        await until(firewall, Rule(False, True, 1000, (item,), (item, two), traffic))
        compute = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/global/firewalls/f"
        await lab.request("PATCH", compute, {"priority": 7, "disabled": False})
        await until(firewall, Rule(False, True, 7, (item,), (item, two), traffic))
        await lab.request("DELETE", compute)
        await until(firewall)
        assert not following.done()
        following.cancel()


async def tag(lab: Lab, node: str, tags: list[str]) -> None:
    change: Any = await lab.api("PATCH", f"nodes/{node}?updateMask=tags", node_body(tags=tags))
    assert "error" not in await lab.finish(change)


async def until(firewall: Recorder, *rules: Rule) -> None:
    async with asyncio.timeout(HANG_S):
        while firewall.rules != rules:
            await asyncio.sleep(0.01)
