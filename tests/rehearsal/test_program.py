"""Parts of a world: the copy of the program, its settings, the text on the data disk, the login."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import google.auth
import httplib2
import pytest
import requests

from rehearsal.errors import WorldError
from rehearsal.providers.gcp.install import PACKAGES, install, is_standin
from rehearsal.scenario import steps
from rehearsal.scenario.building import pulumi, summary
from rehearsal.world import names, person
from rehearsal.world.checkout import change_settings, copy_program, read_settings
from rehearsal.world.dial import address_of
from rehearsal.world.layout import Layout, State, started
from rehearsal.world.making import install_plugins
from rehearsal.world.snapshot import Text

ROOT = Path(__file__).parents[2]


def tree(folder: Path) -> Path:
    folder.mkdir()
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitignore").write_text("secret\n")
    for name in ("tracked", "new", "secret", "deleted"):
        (folder / name).write_text(name)
    subprocess.run(["git", "-C", folder, "add", "tracked", "deleted"], check=True)
    (folder / "tracked").write_text("edited")
    (folder / "deleted").unlink()
    return folder


def test_the_copy_is_the_program_as_it_stands(tmp_path: Path) -> None:
    assert copy_program(tmp_path / "copy", tree(tmp_path / "tree")) == 3
    copied = {path.name: path.read_text() for path in (tmp_path / "copy").iterdir()}
    assert copied == {".gitignore": "secret\n", "tracked": "edited", "new": "new"}


@pytest.mark.root
def test_a_checkout_of_another_user_can_be_copied(tmp_path: Path) -> None:
    subprocess.run(["chown", "-R", "1234", tree(tmp_path / "tree")], check=True)
    assert copy_program(tmp_path / "copy", tmp_path / "tree") == 3


def test_only_a_checkout_can_be_copied(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="not a git checkout"):
        copy_program(tmp_path / "copy", tmp_path)


def test_settings_are_laid_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text("encryptionsalt: s\nconfig:\n  a:b: 1\n  a:c: 2\n")
    change_settings(tmp_path, "dev", {"a:b": None, "a:d": [{"name": "x"}]})
    assert read_settings(tmp_path, "dev") == {"a:c": 2, "a:d": [{"name": "x"}]}
    assert "encryptionsalt: s" in (tmp_path / "Pulumi.dev.yaml").read_text()


def test_an_environment_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text("config: {}\n")
    with pytest.raises(WorldError, match=r"no Pulumi\.prd\.yaml; environments here: dev"):
        read_settings(tmp_path, "prd")


def test_text_is_the_same_each_time_and_ends_at_the_limit(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.py").write_text("x" * 10)
    (tmp_path / "0.png").write_text("no text")
    text = Text((str(tmp_path),), (".py",), limit_bytes=35)
    assert [path.name for path in text.files()] == ["0.py", "1.py", "2.py"]


def test_the_default_text_is_on_this_machine() -> None:
    files = Text().files()
    assert sum(path.stat().st_size for path in files) > 1_000_000
    assert not any("site-packages" in path.parts for path in files)


def test_no_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="no text below"):
        Text((str(tmp_path),)).files()


def test_nothing_of_the_users_cloud_reaches_the_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = {
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "PULUMI_ACCESS_TOKEN": "secret",
        "PULUMI_BACKEND_URL": "gs://real-state",
        "HTTPS_PROXY": "http://proxy",
        "CLOUDSDK_CORE_PROJECT": "real-project",
    }
    for name, value in mapping.items():
        monkeypatch.setenv(name, value)
    inside = person.environment(Layout(tmp_path), "my-project")
    assert [name for name, value in mapping.items() if inside.get(name) == value] == []
    assert inside["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/stacks"


def test_what_is_published_in_a_world_is_for_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_LOCK", "tpu")
    assert person.environment(Layout(tmp_path), "my-project")["TPU_LOCK"] == "cpu"


def test_every_python_client_trusts_the_worlds_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In place of this machine's environment, which may name a bundle of its own.
    monkeypatch.setattr("os.environ", person.environment(Layout(tmp_path), "my-project"))
    verify = requests.Session().merge_environment_settings("https://x", {}, None, None, None)["verify"]
    bundle = str(person.SYSTEM_BUNDLE)
    assert [verify, httplib2.certs.where(), ssl.get_default_verify_paths().cafile] == [bundle] * 3


def test_the_login_is_one_that_google_auth_reads(tmp_path: Path) -> None:
    path = person.write_login(tmp_path, "ci", "a-token", "my-project")
    assert str(path) == person.login("ci", tmp_path)["GOOGLE_APPLICATION_CREDENTIALS"]
    result, _ = google.auth.load_credentials_from_file(str(path))  # type: ignore[no-untyped-call]
    assert (result.refresh_token, result.quota_project_id) == ("a-token", "my-project")
    assert path.stat().st_mode & 0o077 == 0


def test_the_hosts_file_names_each_host_once() -> None:
    listed = [word for line in names.hosts_file().splitlines() for word in line.split()[1:]]
    assert "storage.googleapis.com" in listed
    assert "metadata.google.internal" in listed
    repeated = {word for word in listed if listed.count(word) > 1}
    assert repeated == {"localhost"}


@pytest.mark.prove
def test_the_cli_runs_the_official_plugin_that_is_installed(tmp_path: Path) -> None:
    places = {name: package.place(tmp_path / ".pulumi") for name, package in PACKAGES.items()}
    for name, executable in places.items():
        executable.parent.mkdir(parents=True)
        serving = f"from rehearsal.providers.gcp.__main__ import main; main(['serve', '{name}'])"
        executable.write_text(
            f'#!/bin/sh\ntouch {tmp_path}/ran-{name}\ncd {ROOT} && exec {sys.executable} -c "{serving}"\n'
        )
        executable.chmod(0o755)
    layout = Layout(tmp_path / "world")
    layout.pulumi_home.mkdir(parents=True)
    output = install_plugins(layout, tmp_path / ".pulumi" / "plugins", {})
    assert output == ", ".join(f"official plugin {package.folder}" for package in PACKAGES.values())
    before = sorted((tmp_path / ".pulumi").rglob("*"))

    def cli(*arguments: str) -> str:
        """The real CLI, which looks for plugins nowhere but in the world's Pulumi home."""
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path / "nobody"),
            "PULUMI_HOME": str(layout.pulumi_home),
            "PULUMI_BACKEND_URL": f"file://{tmp_path}",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }
        command = ["pulumi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = {load["name"]: load["version"] for load in json.loads(cli("plugin", "ls", "--json"))}
    assert listed == {name: package.version for name, package in PACKAGES.items()}
    for name, desired in listed.items():
        cli("package", "get-schema", f"{name}@{desired}")
        assert (tmp_path / f"ran-{name}").exists()
    assert sorted((tmp_path / ".pulumi").rglob("*")) == before


@pytest.mark.parametrize("named", [True, False], ids=["named", "in the user's home"])
def test_only_a_package_without_an_official_plugin_gets_the_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    place = PACKAGES["gcp"].place(tmp_path / ".pulumi")
    place.parent.mkdir(parents=True)
    place.write_text("official")
    before = sorted((tmp_path / ".pulumi").rglob("*"))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    layout = Layout(tmp_path / "world")
    layout.pulumi_home.mkdir(parents=True)
    layout.program.symlink_to(ROOT)
    plugins = tmp_path / ".pulumi" / "plugins" if named else None
    output = install_plugins(layout, plugins, dict(os.environ))
    assert output == f"official plugin {PACKAGES['gcp'].folder}, stand-in for kubernetes"
    assert is_standin(PACKAGES["kubernetes"].place(layout.pulumi_home))
    assert PACKAGES["gcp"].place(layout.pulumi_home).read_text() == "official"
    assert sorted((tmp_path / ".pulumi").rglob("*")) == before


def test_a_plugin_folder_without_a_plugin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="holds no official resource-gcp-v"):
        install_plugins(Layout(tmp_path), tmp_path, {})


def test_the_stand_in_is_not_taken_for_the_official_plugin(tmp_path: Path) -> None:
    install(tmp_path)
    with pytest.raises(WorldError, match="holds no official resource-gcp-v"):
        install_plugins(Layout(tmp_path), tmp_path / "plugins", {})


STATUS = {
    "nodes": [
        {"hosts": [{"name": "tpu-dev-w0", "address": "10.0.0.2", "running": True}]},
        {"hosts": [{"name": "tpu-dev-w1", "address": "10.0.0.3", "running": False}]},
    ],
    "instances": [{"name": "controller", "address": "10.0.0.4", "running": True}],
}


def test_ssh_finds_a_host_by_its_name() -> None:
    assert address_of(STATUS, "tpu-dev-w0") == "10.0.0.2"
    assert address_of(STATUS, "controller") == "10.0.0.4"
    with pytest.raises(
        WorldError, match="no host is called tpu-dev-w7; hosts: controller, tpu-dev-w0, tpu-dev-w1"
    ):
        address_of(STATUS, "tpu-dev-w7")
    with pytest.raises(WorldError, match="switched off"):
        address_of(STATUS, "tpu-dev-w1")


def test_a_process_that_ended_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "100"])
    since = started(child.pid)
    assert since is not None
    assert State(1, 1, child.pid, since, {}).alive
    assert not State(1, 1, child.pid, since + 1, {}).alive
    child.kill()
    child.wait()
    assert started(child.pid) is None


def test_the_commands_are_those_of_the_readme() -> None:
    up = ["up", "-s", "dev"]
    flags = ["--non-interactive", "--color", "never"]
    assert pulumi("storage", *up) == ["pulumi", "-C", "infra/layers/storage", *up, *flags]
    assert pulumi("tpu", *up) == ["pulumi", *up, *flags]


def test_what_pulumi_printed_is_summed_up() -> None:
    output = "Resources:\n    + 4 created\n    ~ 1 updated\n    2 unchanged\n\nDuration: 3s\n"
    assert summary(output) == "4 created, 1 updated, 2 unchanged"
    assert summary("Resources:\n    19 unchanged\n") == "19 unchanged"
    assert str(steps.up("tpu", refused="no capacity")) == "pulumi up: tpu   (must fail)"
