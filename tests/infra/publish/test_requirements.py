"""Packages of the user's own code: resolved beside the workload's, locked, and in the bundle."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from google.cloud import storage

from cli.__main__ import main
from infra.publish import interpreter, publishing, requirements, wheels
from infra.publish.errors import PublishError
from infra.settings import commands


def make_wheel(into: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any") -> Path:
    """A wheel with one module that knows its version."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = '{version}'\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{about}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},"
        f"{len(text)}\n"
        for path, text in files.items()
    ]
    path = into / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, text in files.items():
            wheel.writestr(inner, text)
        wheel.writestr(f"{about}/RECORD", "".join(rows))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that uv and pip can have; no registry is asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, "base", "1.0")
    make_wheel(folder, "base", "2.0")
    make_wheel(folder, "addon", "0.1", "base")
    make_wheel(folder, "oldaddon", "0.1", "base<2")
    make_wheel(folder, "macaddon", "0.1", tag="cp311-cp311-macosx_11_0_arm64")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, str(folder))
    for name in ("UV_OFFLINE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def lock(tmp_path: Path, index: Path) -> Path:
    """The workload's own: base 2.0."""
    digest = hashlib.sha256((index / "base-2.0-py3-none-any.whl").read_bytes()).hexdigest()
    path = tmp_path / "cpu.txt"
    path.write_text(f"# ours\nbase==2.0 \\\n    --hash=sha256:{digest}\n")
    return path


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    return path


def test_only_what_the_workload_lacks_is_locked_and_its_versions_are_kept(tmp_path: Path, lock: Path) -> None:
    resolve = requirements.resolve(written(tmp_path, "addon\nbase>=1\n"), "r.txt", lock)
    lines = resolve.read_text().splitlines()
    assert lines[0].startswith("addon==0.1")
    assert "--hash=sha256:" in lines[1]
    assert "base" not in resolve.read_text()
    assert [wheel.name for wheel in wheels.locked(resolve)] == ["addon-0.1-py3-none-any.whl"]


def test_the_same_content_is_resolved_once(
    tmp_path: Path, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more.txt").write_text("base\n")
    first = requirements.resolve(written(tmp_path, "-r more.txt\n"), "r.txt", lock)
    assert first.read_text() == ""
    (tmp_path / "more.txt").write_text("addon\n")
    second = requirements.resolve(written(tmp_path, "-r more.txt\n"), "r.txt", lock)
    assert second.read_text().startswith("addon==0.1")
    monkeypatch.setattr(requirements.uv, "find_uv_bin", lambda: "/bin/false")
    assert requirements.resolve(written(tmp_path, "-r more.txt\n"), "r.txt", lock) == second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oldaddon\n", "oldaddon"),
        ("nowhere-to-be-found\n", "nowhere-to-be-found was not found"),
        ("macaddon\n", "macaddon"),
        ("base==3\n", "base==3"),
        ("this is no requirement\n", "this is no requirement"),
    ],
)
def test_what_has_no_solution_on_the_hosts_is_said_in_one_line(
    tmp_path: Path, lock: Path, text: str, message: str
) -> None:
    with pytest.raises(PublishError) as refusal:
        requirements.resolve(written(tmp_path, text), "training/requirements.txt", lock)
    output = str(refusal.value)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    start = "tpu:requirements: training/requirements.txt can't be resolved for the hosts (Python "
    assert output.startswith(f"{start}{version}, Linux on x86-64, wheels only, beside the packages of")
    assert message in output
    assert "\n" not in output


def test_a_package_without_a_hash_is_refused(tmp_path: Path, lock: Path, index: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/pyproject.toml").write_text(
        "[project]\nname='mine'\nversion='1'\n[build-system]\nrequires=[]\nbuild-backend='b'\nbackend-path=['.']\n"
    )
    with pytest.raises(PublishError, match=r"^tpu:requirements: r.txt "):
        requirements.resolve(written(tmp_path, f"{tmp_path / 'pkg'}\n"), "r.txt", lock)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"^tpu:requirements: r.txt does not exist"):
        requirements.resolve(tmp_path / "r.txt", "r.txt", None)


@pytest.fixture
def project(
    tmp_path: Path, bucket: storage.Bucket, index: Path, packed: tuple[Path, tuple[str, ...]], workload: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:  # fmt: skip
    """A project of which only the settings and the user's folder are its own."""
    root = tmp_path / "project"
    (root / "training").mkdir(parents=True)
    (root / "training/train.py").write_text("import addon\n")
    (root / "training/requirements.txt").write_text("addon\n")
    slices = [{"name": "mine", "acceleratorType": "v6e-8", "zones": ["us-east5-b"], "run": "python train.py"}]
    config = {
        "gcp:project": "my-project",
        "storage:bucketName": bucket.name,
        "storage:location": "us-east5",
        "tpu:slices": slices,
        "tpu:code": "training/",
    }
    (root / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
    monkeypatch.setattr(wheels, "build_workload", lambda into: workload)
    chosen = interpreter.Interpreter(packed[0], "this one")
    monkeypatch.setattr(interpreter, "choose", lambda *, for_tpu: chosen)
    monkeypatch.setattr(publishing, "ROOT", root)
    return root


def test_code_and_packages_are_in_the_bundle(
    project: Path, bucket: storage.Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "dev", "--lock", "bare", "--json"]) == 0
    bundle = json.loads(capsys.readouterr().out)["bundle"]
    manifest = bucket.blob(f"bundles/manifests/{bundle}").download_as_text()
    paths = {line.split("  ")[1] for line in manifest.splitlines()}
    assert {"code.tar.gz", "code-requirements.txt", "wheels/addon-0.1-py3-none-any.whl"} < paths
    assert f"tpu:bundle: {bundle}" in (project / "Pulumi.dev.yaml").read_text()
    (project / "training/train.py").write_text("import addon, base\n")
    assert main(["publish", "dev", "--lock", "bare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bundle"] != bundle


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train.py", None, 'tpu:slices[0].run: "python train.py" needs train.py, which isn\'t in training'),
        ("requirements.txt", "nowhere", "tpu:requirements: training/requirements.txt can't be resolved"),
    ],
)
def test_what_is_wrong_is_one_message_with_the_next_command_and_nothing_is_done(
    project: Path,
    bucket: storage.Bucket,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str | None,
    message: str,
) -> None:
    if text is None:
        (project / "training" / file).unlink()
    else:
        (project / "training" / file).write_text(text)
    before = (project / "Pulumi.dev.yaml").read_bytes()
    assert main(["publish", "dev", "--lock", "bare"]) == (2 if text is None else 1)
    output = capsys.readouterr().err
    assert output.startswith(f"error: {message}")
    assert output.endswith("Nothing was published. Next: tpu publish dev\n")
    assert not list(bucket.list_blobs())
    assert (project / "Pulumi.dev.yaml").read_bytes() == before


def test_a_run_that_is_sent_to_wandb_without_its_package_is_not_published(
    project: Path, bucket: storage.Bucket, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = project / "Pulumi.dev.yaml"
    settings.write_text(settings.read_text().replace("python train.py", "train mine.toml"))
    (project / "training/mine.toml").write_text('[observe]\nwandb = "team/vision"\n')
    assert main(["publish", "dev", "--lock", "bare"]) == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith(
        'error: tpu:slices[0].run: "train mine.toml" with observe.wandb = "team/vision" needs the package '
        "wandb: add a line `wandb` to training/requirements.txt. Nothing was published."
    )
    assert not list(bucket.list_blobs())
    make_wheel(index, "wandb", "0.31.0")
    (project / "training/requirements.txt").write_text("addon\nwandb\n")
    assert main(["publish", "dev", "--lock", "bare", "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("run", "project"),
    [
        ("train mine.toml", "team/vision"),
        ("train over.toml", "team/vision"),
        ("train off.toml", ""),
        ("train round.toml", ""),
        ("train broken.toml", ""),
        ("train absent.toml", ""),
        ("train tiny.toml", ""),
        ("train tiny.toml --set observe.wandb=a --set observe.wandb=team/vision", "team/vision"),
        ("train mine.toml --set 'observe.wandb=\"\"'", ""),
        ("python train.py --set observe.wandb=team/vision", ""),
        ("extract tiny.toml --stream gs://b/s", ""),
    ],
)
def test_the_project_of_a_run_is_that_of_its_settings(run: str, project: str, tmp_path: Path) -> None:
    files = {
        "mine": '[observe]\nwandb = "team/vision"',
        "over": 'base = "mine.toml"\n[observe]\nstrict = true',
        "off": 'base = "mine.toml"\n[observe]\nwandb = ""',
        "round": 'base = "round.toml"',
        "broken": "observe",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    started = commands.training(run)
    assert ((started and commands.given(started, tmp_path).get("observe.wandb")) or "") == project


def test_a_host_installs_them(project: Path, index: Path, tmp_path: Path) -> None:
    """The very words of the boot script, on an environment of this machine."""
    locked = requirements.resolve(project / "training/requirements.txt", "r.txt", None)
    uv = requirements.uv.find_uv_bin()
    venv = tmp_path / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    part = (Path(__file__).parents[3] / "infra/layers/tpu/startup/parts/python.sh").read_text()
    assert "--no-index --find-links" in part
    # fmt: off
    install = [
        uv, "pip", "install", "--quiet", "--python", venv / "bin/python", "--no-index", "--find-links", index,
        "--require-hashes", "--requirements", locked,
    ]
    # fmt: on
    subprocess.run(install, check=True)
    output = subprocess.run(
        [venv / "bin/python", "-c", "import addon, base; print(addon.VERSION, base.VERSION)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout == "0.1 2.0\n"
