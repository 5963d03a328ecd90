"""Declarations of layers, and the messages about wrong ones."""

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.core import upstream
from infra.core.environment import layers_on
from infra.core.layer import Hooks, Layer
from infra.core.outputs import Outputs, output
from infra.core.outputs import declared as outputs_of
from infra.engine import registry
from infra.engine.registry import ordered
from infra.errors import InfraError, LayersError
from infra.settings.schema import setting
from infra.settings.sources import ROOT
from tests.infra.recording import BASE, UPSTREAM, Recording, execute, parsed, run


def layer(name: str, **more: Any) -> Layer:
    @dataclass(frozen=True, kw_only=True)
    class Settings:
        """Of a test."""

        size: int = setting("size", default=1)

    class Made(Outputs, layer=name):
        """Of a test."""

    return Layer(**{
        "name": name, "settings": Settings, "outputs": Made, "program": lambda *_: Made(), "providers": {},
        **more,
    })  # fmt: skip


def refused(tmp_path: Path, *declarations: tuple[str, Layer], project: str | None = None) -> str:
    for folder, item in declarations:
        (tmp_path / "infra" / "layers" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "infra" / "layers" / folder / "Pulumi.yaml").write_text(f"name: {project or item.name}\n")
    with pytest.raises(LayersError) as caught:
        ordered(declarations, tmp_path)
    return str(caught.value)


def test_layers_come_behind_those_that_they_read(tmp_path: Path) -> None:
    result = [
        layer("a", reads=("c",)), layer("b"), layer("c"), layer("d", reads=("a",), may_read=("b",))
    ]  # fmt: skip
    for element in result:
        (tmp_path / "infra" / "layers" / element.name).mkdir(parents=True)
        (tmp_path / "infra" / "layers" / element.name / "Pulumi.yaml").write_text(f"name: {element.name}\n")
    for several in (result, result[::-1]):
        assert [entry.name for entry in ordered([(item.name, item) for item in several], tmp_path)] == list(
            "bcad"
        )


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        ("selfish", layer("selfish", reads=("selfish",))),
        ("lonely", layer("lonely", may_read=("nowhere",))),
        ("hen", layer("hen", hooks=Hooks(after=("egg",)))),
        ("egg", layer("egg", reads=("hen",))),
        ("omelette", layer("omelette", reads=("egg",))),
        ("twin", layer("twin")),
        ("other", layer("twin")),
        ("fleet", layer("fleet")),
    )
    for sentence in (
        "infra/layers/selfish = reads selfish: a layer doesn't read itself",
        "infra/layers/lonely = reads nowhere: a layer reads layers that are there: egg, fleet, ",
        "infra/layers/egg, infra/layers/hen = egg after hen; hen after egg: a layer comes up",
        "infra/layers/twin = layer twin, as infra/layers/other: each layer has its own name",
        "infra/layers/other = layer twin, as infra/layers/twin: each layer has its own name",
        "twin:size = claimed by infra/layers/twin and infra/layers/other: a setting",
        "fleet: = claimed by the program itself and infra/layers/fleet: a setting",
    ):
        assert sentence in message
    assert "omelette" not in message.replace("egg, fleet, hen, omelette", ""), "it is in no circle"


def test_a_setting_is_made_by_setting_and_has_one_name(tmp_path: Path) -> None:
    twice = dataclasses.make_dataclass(
        "Twice",
        [
            ("disk_gib", int, setting("a", default=1)),
            ("diskGib", int, setting("b", default=1)),
            ("plain", int),
        ],
        kw_only=True,
    )
    message = refused(tmp_path, ("a", layer("a", settings=twice)))
    assert "a:diskGib = claimed by infra/layers/a twice: a setting belongs to one" in message
    assert "infra/layers/a = the field plain: settings are made by setting()" in message


def test_the_project_is_called_as_the_layer(tmp_path: Path) -> None:
    message = refused(tmp_path, ("a", layer("a")), ("c", layer("c", outputs=Cluster)), project="b")
    assert "infra/layers/a = name: b in infra/layers/a/Pulumi.yaml: " in message
    assert 'infra/layers/c = class Cluster(Outputs, layer="cluster"): ' in message
    assert 'infra/layers/b = layer "a": ' in refused(tmp_path, ("b", layer("a")))


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterable[list[Layer]]:
    """Layers that are there beside the project's own."""
    more: list[Layer] = []
    own = registry.layers()
    monkeypatch.setattr(registry, "layers", lambda: (*own, *more))
    return more


def settings(**changes: Any) -> Any:
    values = {**BASE, **{key.replace("__", ":"): value for key, value in changes.items()}}
    return parsed(values)


@pytest.mark.parametrize("service", ["compute", "Compute.googleapis.com", "compute.googleapi.com", ""])
def test_a_service_is_a_name_at_google(service: str, declared: list[Layer]) -> None:
    declared.append(layer("extra", services=lambda _: [service]))
    settings()
    with pytest.raises(LayersError, match=f'infra/layers/extra = the service "{service}": '):
        settings(extra__size=2)


def test_a_layer_is_on_where_the_file_has_a_setting_of_it(declared: list[Layer]) -> None:
    declared += [layer("extra"), layer("more", reads=("extra",))]
    on = [item.name for item in layers_on(settings(extra__size=1))]
    assert ("extra" in on, "more" in on) == (True, False)
    with pytest.raises(InfraError, match=r"more: = on, and extra is off: more reads extra\n    fix: add"):
        settings(more__size=1)
    for key in ("extra", "extra:"):
        with pytest.raises(InfraError, match=rf"(?s){key} = {{}}: a section is its keys, .*extra:size: "):
            settings(**{key: {}})


def test_a_layer_that_is_off_has_no_settings_and_no_program() -> None:
    off = settings()
    data = next(item for item in registry.layers() if item.name == "data")
    assert data in layers_on(off)
    off = parsed({k: v for k, v in BASE.items() if k != "data:snapshot"})
    assert data not in layers_on(off)
    with pytest.raises(InfraError, match="DataSettings isn't set in dev: its layer is off there"):
        off[data.settings]
    with pytest.raises(pulumi.RunError, match=r"data is off in dev: .*\n    fix: .*tpu down dev data"):
        run("data", {"data:snapshot": None})
    assert not [call for call in run("tpu", {"data:snapshot": None}).calls if "/data/" in str(call)]


class Cluster(Outputs, layer="cluster"):
    """Outputs of a cluster; a test sets `planned`."""

    endpoint: "pulumi.Output[str]" = output("address")
    ca: "pulumi.Output[str]" = output("certificate")
    name: "pulumi.Output[str]" = output("name")
    pools: dict[str, "pulumi.Output[str]"] = output("by zone", key="zone")
    spare: "pulumi.Output[str] | None" = output("or none", default=None)


def test_outputs_are_those_that_are_declared() -> None:
    given: dict[str, Any] = {"endpoint": "e", "ca": "c", "colour": "red", "pools": None}
    with pytest.raises(InfraError) as caught:
        Cluster(**given)
    assert str(caught.value).splitlines() == [
        "3 problems in the outputs of a layer:",
        "  Cluster.name is declared and the program doesn't give it",
        "  Cluster.pools is declared and the program doesn't give it",
        "  Cluster.colour is given and isn't declared",
        "    fix: in its class and program",
    ]


def test_outputs_may_be_unknown_in_a_preview_and_secret(
    declared: list[Layer], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def program(checked: Any, _: Any) -> Outputs:
        existing = upstream.read(Cluster, checked)
        for name, value in {
            "endpoint": existing.endpoint, "ca": existing.ca, "name": existing.name,
            "pool": existing.pools["us-east5-b"],
        }.items():  # fmt: skip
            seen[name] = value
        assert existing.spare is None
        return reader.outputs()

    async def values() -> dict[str, tuple[Any, bool]]:
        return {
            name: (await item.future() if await item.is_known() else "unknown", await item.is_secret())
            for name, item in seen.items()
        }

    reader = layer("reader", reads=("cluster",), program=program)
    foretold = {"name": "planned", "pools": {"us-east5-b": "pool"}}
    monkeypatch.setattr(Cluster, "planned", lambda _: foretold)
    declared += [layer("cluster", outputs=Cluster), reader]
    given = {**BASE, "cluster:size": 1, "reader:size": 1}

    up = {"endpoint": "10.0.0.2", "ca": "pem", "name": "", "pools": {"us-east5-b": "one"}}
    recording = Recording(True, {**UPSTREAM, "cluster": up}, secret=("endpoint", "ca"))
    execute("reader", given, recording)
    assert asyncio.run(values()) == {
        "endpoint": ("10.0.0.2", True), "ca": ("pem", True), "name": ("", False), "pool": ("one", False),
    }  # fmt: skip

    recording = Recording(True, UPSTREAM)
    execute("reader", given, recording)
    assert {name: value for name, (value, _) in asyncio.run(values()).items()} == {
        "endpoint": "unknown", "ca": "unknown", "name": "planned", "pool": "pool",
    }  # fmt: skip
    assert "cluster is not up yet: this preview doesn't know its endpoint" in recording.log

    with pytest.raises(pulumi.RunError, match=r"cluster is not up; run this first: tpu up dev cluster"):
        execute("reader", given, Recording(False, UPSTREAM))
    monkeypatch.setattr(Cluster, "planned", lambda _: {"colour": "red"})
    with pytest.raises(pulumi.RunError, match="cluster plans colour, and declares no such output"):
        execute("reader", given, Recording(True, UPSTREAM))


ON = {
    "builds": {
        "builds:image": f"docker.io/library/python@sha256:{'0' * 64}",
        "storage:stateBucketName": "my-project-pulumi",
        "storage:stateKeyRing": "pulumi",
    },
    "gke": {"gke:tpuPools": [{"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}]},
}
# By Google, or drawn when the stack is first brought up; of a slice's state nothing is known before.
CHOSEN_LATER = {
    "storage": {"project_number"},
    "gke": {"endpoint", "kubeconfig"},
    "tpu": {"stack_id", "slices", "fleets"},
}


def test_what_others_read_of_our_layers_can_be_previewed_before_it_is_up() -> None:
    read = {name for item in registry.layers() for name in item.needs}
    assert read
    for entry in registry.layers():
        if entry.name in read:
            needed = {item.name for item in outputs_of(entry.outputs).values() if item.required}
            known = settings(**ON.get(entry.name, {}))
            assert set(entry.outputs.planned(known)) == needed - CHOSEN_LATER.get(entry.name, set()), (
                entry.name
            )


def test_a_program_gives_what_its_layer_declares(declared: list[Layer]) -> None:
    declared.append(layer("extra", program=lambda *_: Cluster(endpoint=1, ca=1, name=1, pools=1)))  # type: ignore[arg-type]
    with pytest.raises(pulumi.RunError, match="the program of extra gives Cluster and declares Made"):
        run("extra", {"extra:size": 1})


def test_who_only_reads_the_settings_does_not_wait_for_pulumi() -> None:
    script = "from infra.engine.settings import from_file; from_file('dev')"
    script += "; import sys; print('pulumi' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
