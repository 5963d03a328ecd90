"""The guide to Slurm and the blueprint's page: settings, files, variables and messages are true."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from infra.layers.slurm.settings import SlurmSettings
from infra.settings.schema import Settings
from rehearsal.scenario.guides import commands
from rehearsal.scenario.scenario import find, load
from tests.infra.recording import BASE, parsed
from tests.workload.test_slurm import of
from tools.blocks import ROOT
from workload.host.slurmd import mounts, service

GUIDE = re.sub(r" \\\n +", " ", (ROOT / "docs/guides/slurm.md").read_text("utf-8"))
BLUEPRINT = (ROOT / "docs/guides/from-cluster-toolkit.md").read_text("utf-8")


def blocks(page: str) -> list[str]:
    """Return the indented blocks."""
    return [re.sub(r"(?m)^    ", "", block) for block in re.findall(r"(?m)^((?: {4}.*\n)+)", page)]


def settings_of(page: str) -> Settings:
    values: dict[str, Any] = {}
    for block in blocks(page):
        if block.startswith("slurm:"):
            values |= yaml.safe_load(block)
    return parsed({**BASE, **values})


@pytest.mark.parametrize("page", [GUIDE, BLUEPRINT], ids=["guide", "blueprint"])
def test_the_settings_of_a_page_are_accepted(page: str) -> None:
    nodeset, *_ = settings_of(page)[SlurmSettings].nodesets
    assert (nodeset.name, nodeset.spot) == ("tpu", True)


def test_the_scenario_types_all_that_the_guide_prints() -> None:
    scenario = load(find("slurm-jobs"))
    typed = [section for step in scenario.steps for section in step.arguments.get("sections", ())]
    assert typed == list(commands(ROOT / "docs/guides/slurm.md"))
    assert [line for line in scenario.prepare if f"    {line}\n" not in GUIDE] == []
    desired = settings_of(GUIDE)[SlurmSettings].nodesets
    assert [(nodeset["name"], nodeset["acceleratorType"], nodeset["nodeCountDynamicMax"])
            for nodeset in scenario.settings["slurm:nodesets"]] == [
        (nodeset.name, nodeset.accelerator_type, nodeset.node_count_dynamic_max) for nodeset in desired
    ]  # fmt: skip


def test_each_line_of_the_blueprint_has_a_row() -> None:
    modules = yaml.safe_load(next(block for block in blocks(BLUEPRINT) if block.startswith("- id")))
    keys = [
        key
        for module in modules
        for key in (*(key for key in module if key != "settings"), *module["settings"])
    ]
    rows = re.findall(r"(?m)^\| `(\w+): ", BLUEPRINT.partition("## Its sbatch")[0])
    assert rows == keys


def test_the_variables_that_the_guide_shows_are_those_of_a_real_task() -> None:
    block = next(block for block in blocks(GUIDE) if block.startswith("0: WORKER_ID"))
    shown = dict(re.findall(r"(?m)^0: (\w+)=(.*)$", block))
    assert shown == of(0)
    assert list(shown) == list(of(0))


def test_messages_that_the_guide_explains_are_printed() -> None:
    table = GUIDE.partition("| line | cause |")[2].partition("\n\n")[0]
    lines = re.findall(r"(?m)^\| `([^`]+)` \|", table)
    modules = (mounts.__file__, service.__file__)
    sources = "".join((ROOT / str(module)).read_text("utf-8") for module in modules)
    assert len(lines) == 4
    texts = re.sub(r"\{[\w.]+\}", "/home", sources)
    assert [line for line in lines if line not in texts] == []


def test_files_that_sbatch_is_given_exist() -> None:
    named = re.findall(r"examples/slurm/[\w./-]+\.sbatch", GUIDE + BLUEPRINT)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).is_file()] == []
