"""Settings that are right, and where they are read from."""

import json
import re
from pathlib import Path

import pulumi
import pytest

from infra.engine.settings import from_file, from_pulumi, parse
from infra.errors import InfraError, SettingsError
from infra.layers.data.settings import DataSettings
from infra.layers.network.settings import NetworkSettings
from infra.layers.storage.settings import StorageSettings
from infra.settings.rules import FOLDERS
from infra.settings.sources import ROOT, as_pulumi_hands_it_over
from infra.slices.settings import TpuSettings
from tests.infra.recording import BASE, parsed


@pytest.mark.parametrize(
    ("environment", "kind", "hosts", "spot", "run"),
    [
        ("dev", "v6e-16", 4, True, "train tiny.toml"),
        ("prod", "v6e-256", 64, False, "train llama-3.1-8b-v6e-256.toml"),
    ],
)
def test_the_committed_environments(environment: str, kind: str, hosts: int, spot: bool, run: str) -> None:
    from infra.slices.nodes import nodes

    (node,) = nodes(from_file(environment))
    assert (node.kind.name, node.kind.hosts, node.spot) == (kind, hosts, spot)
    assert node.run == run


def test_dev_is_what_the_rehearsal_runs() -> None:
    dev = from_file("dev")
    assert [(item.name, item.zones) for item in dev[TpuSettings].slices] == [("tpu-dev", ("us-east5-b",))]
    assert dev[DataSettings].snapshot is not None
    assert 'pulumi:disable-default-providers: ["*"]' in (ROOT / "Pulumi.dev.yaml").read_text()
    assert 'pulumi:disable-default-providers: ["*"]' in (ROOT / "Pulumi.prod.yaml").read_text()


def test_pulumi_and_the_file_give_the_same(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(json.dumps({"config": BASE}))
    from_the_file = from_file("dev", tmp_path)
    pulumi.runtime.set_all_config(as_pulumi_hands_it_over(BASE, "f"))
    try:
        assert from_pulumi("dev") == from_the_file
    finally:
        pulumi.runtime.set_all_config({})


def test_numbers_and_booleans_are_typed() -> None:
    values = {**BASE, "network:mtu": 1500, "network:cloudNat": True, "network:flowLogSampling": 1}
    settings = parsed(values)
    assert (settings[NetworkSettings].mtu, settings[NetworkSettings].cloud_nat) == (1500, True)
    assert settings[NetworkSettings].flow_log_sampling == 1.0


def test_a_topology_alone_names_the_type() -> None:
    from infra.slices.nodes import nodes

    slices = [{"name": "train", "topology": "16x16", "zones": ["us-east5-b"]}]
    values = {**BASE, "data:throughputMibps": 6400, "tpu:slices": slices}
    settings = parsed(values)
    assert [node.kind.name for node in nodes(settings)] == ["v6e-256"]


def test_a_zone_that_is_not_in_the_catalog_can_be_added() -> None:
    slices = [{"name": "train", "acceleratorType": "v6e-8", "zones": ["us-east5-c"]}]
    values = {**BASE, "tpu:slices": slices, "tpu:additionalZones": ["us-east5-c"]}
    assert parsed(values)[TpuSettings].slices[0].zones == ("us-east5-c",)


def test_hierarchical_namespace_instead_of_versioning() -> None:
    values = {**BASE, "storage:versioning": False, "storage:hierarchicalNamespace": True}
    assert parsed(values)[StorageSettings].hierarchical_namespace


BOMB = "config:\n  tpu:a: &a [x]\n" + "".join(
    f"  tpu:{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghi"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "config: [",
            "Pulumi.dev.yaml is not YAML for settings: while parsing a flow node",
        ),
        (
            "config:\n  gcp:project: one\n  gcp:project: two",
            "Pulumi.dev.yaml is not YAML for settings: gcp:project is there twice at line 3, column 3",
        ),
        ("config: {tpu:slices: &a [*a]}", "Pulumi.dev.yaml is not YAML for settings: its aliases expand to"),
        (BOMB, "Pulumi.dev.yaml is not YAML for settings: its aliases expand to more than 100,000 values"),
        ("config: {a:b: .inf}", "Pulumi.dev.yaml is not YAML for settings: "),
        ("config: {a:b: !!bool yes}", "Pulumi.dev.yaml is not YAML for settings: "),
        (f"config: {2000 * '['}", "Pulumi.dev.yaml is not YAML for settings: nested more than 100 deep"),
        ("", "Pulumi.dev.yaml has no `config:` with settings under it: see docs/reference/settings.md"),
        (
            "config: 3",
            "Pulumi.dev.yaml has no `config:` with settings under it: see docs/reference/settings.md",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(content)
    with pytest.raises(InfraError) as caught:
        from_file("dev", tmp_path)
    assert str(caught.value).startswith(message)


def test_a_file_that_is_not_text_and_one_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_bytes(b"config: \xff\xfe")
    with pytest.raises(InfraError, match=r"^Pulumi\.dev\.yaml is not YAML for settings: 'utf-8' codec"):
        from_file("dev", tmp_path)
    (tmp_path / "Pulumi.prod.yaml").mkdir()
    with pytest.raises(InfraError, match=r"^Pulumi\.prod\.yaml can't be read: Is a directory$"):
        from_file("prod", tmp_path)


def test_an_environment_that_does_not_exist() -> None:
    with pytest.raises(InfraError) as caught:
        from_file("stage")
    assert str(caught.value) == (
        "Pulumi.stage.yaml does not exist (environments: dev, prod)\n"
        "    fix: copy Pulumi.dev.yaml to it and edit"
    )


def test_the_first_file_is_not_copied_from_itself(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.prod.yaml").touch()
    with pytest.raises(InfraError, match=r"\n    fix: copy Pulumi\.prod\.yaml to it and edit$"):
        from_file("dev", tmp_path)


def test_all_problems_are_one_error() -> None:
    with pytest.raises(SettingsError) as caught:
        parse("dev", {}, "Pulumi.dev.yaml")
    assert [problem.path for problem in caught.value.problems] == [
        "gcp:project",
        "storage:bucketName",
        "storage:location",
    ]


def test_no_slice_saves_where_this_program_does() -> None:
    page = (ROOT / "docs/internals/architecture.md").read_text().partition("\n## Objects in the bucket")[2]
    written = set(re.findall(r"(?m)^\| `([a-z-]+)/", page.partition("\n## ")[0]))
    assert {"bundles", "runs"} <= written <= set(FOLDERS)
