"""examples/pulumi-program under Pulumi's mocks: what it registers, and with which options."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from infra.settings.sources import PROGRAM
from tests.infra.recording import PROJECT, Recording, execute
from tests.limits import HANG_S

FOLDER = PROGRAM / "examples" / "pulumi-program"
VM = "gcp:tpu/v2Vm:V2Vm"


def run(preview: bool = False, **changes: Any) -> Recording:
    config = yaml.safe_load((FOLDER / "Pulumi.dev.yaml").read_text("utf-8"))["config"]
    recording = Recording(preview, {})
    execute("my-platform", {**config, **changes}, recording, FOLDER / "__main__.py")
    return recording


def test_it_is_one_stack_of_two_layers_a_slice_and_a_bucket() -> None:
    recording = run()
    components = {item.type for item in recording.resources if item.type.startswith("tpu:")}
    assert {"tpu:storage:ProtectedBucket", "tpu:network:TrainingNetwork", "tpu:tpu:TpuSlice"} <= components
    results = f"{PROJECT}-results"
    names = [item.inputs["name"] for item in recording.resources if item.type == "gcp:storage/bucket:Bucket"]
    assert results in names
    assert recording.exports == {"addresses": {"embedded": ["10.64.32.2"]}, "results": results}
    assert [call for call in recording.calls if call[0] == "pulumi:pulumi:readStackOutputs"] == []


def test_the_slice_is_on_the_resources_of_this_stack() -> None:
    vm = run().only(VM)
    account = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"
    assert vm.inputs["networkConfig"]["network"] == f"projects/{PROJECT}/global/networks/tpu-training"
    assert vm.inputs["serviceAccount"]["email"] == account
    assert vm.inputs["metadata"]["tpu-bucket"] == "my-project-checkpoints"
    depended = set(vm.options["dependencies"])
    assert any("gcp:compute/network:Network::tpu-training" in urn for urn in depended), depended


@pytest.mark.parametrize("preview", [True, False])
def test_every_resource_has_the_programs_provider(preview: bool) -> None:
    recording = run(preview)
    custom = [item for item in recording.resources if item.type.startswith("gcp:")]
    assert len(custom) > 15
    providers = {item.options["provider"].rpartition("::")[0] for item in custom}
    assert [urn.endswith("pulumi:providers:gcp::google") for urn in providers] == [True]


def test_pulumi_new_makes_a_project_of_it(tmp_path: Path) -> None:
    made = tmp_path / "mine"
    line = ["pulumi", "new", str(FOLDER), "--dir", str(made), "--name", "mine", "--description", "Of my own"]
    environment = {**os.environ, "PULUMI_HOME": str(tmp_path / "home"), "PULUMI_SKIP_UPDATE_CHECK": "true"}
    done = subprocess.run(
        [*line, "--generate-only", "--yes"],
        env=environment, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    project = yaml.safe_load((made / "Pulumi.yaml").read_text("utf-8"))
    assert (project["name"], project["description"], "template" in project) == ("mine", "Of my own", False)
    for name in ("__main__.py", "Pulumi.dev.yaml"):
        assert (made / name).read_bytes() == (FOLDER / name).read_bytes()


def test_wrong_settings_end_it_as_one_message() -> None:
    with pytest.raises(pulumi.RunError, match=r"storage:location = \"moon\": "):
        run(**{"storage:location": "moon"})
