"""A checkpoint whose numbers differ from those that were saved is never restored."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.workload.slice import command, cpu_devices, train
from workload.__main__ import main
from workload.errors import HopelessError, RunError
from workload.runs.store import FolderStore
from workload.train import checksums
from workload.train.checkpoints import Checkpoints, Restored
from workload.train.cluster import Cluster, Membership
from workload.train.config import CheckpointConfig
from workload.train.past import Past

pytestmark = pytest.mark.slow

STEPS = (10, 20, 30)


def state(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal
    return {
        "params": {
            "embed": jnp.float32(drawn((17, 33))),
            "layers": {"gate": jnp.float32(drawn((3, 16, 24)))},
        },
        "moments": jnp.bfloat16(drawn((5, 64))),
        "count": jnp.int32(seed),
    }


def sums(tree: Any) -> list[int]:
    return [int(value) for value in np.asarray(checksums.compiled(tree)(tree))]


def same(tree: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(leaf, expected) for leaf, expected in pairs)


def test_each_flipped_bit_changes_the_checksum_of_its_array_or_layer_alone() -> None:
    tree = state(1)
    before, compute = sums(tree), checksums.compiled(tree)
    leaves, structure = jax.tree.flatten(tree)  # count, moments, embed, layers of gate
    rng = random.Random(7)
    for number, leaf in enumerate(leaves):
        for _ in range(24):
            raw = bytearray(np.asarray(leaf).tobytes())
            at = rng.randrange(len(raw))
            raw[at] ^= 1 << rng.randrange(8)
            flipped = jnp.asarray(np.frombuffer(bytes(raw), leaf.dtype).reshape(leaf.shape))
            changed = jax.tree.unflatten(structure, [*leaves[:number], flipped, *leaves[number + 1 :]])
            after = np.asarray(compute(changed)).tolist()
            place = number + (at * 3 // len(raw) if number == 3 else 0)
            assert [at for at, (was, now) in enumerate(zip(before, after, strict=True)) if was != now] == [
                place
            ]


def test_a_checksum_depends_on_the_order_of_the_numbers_and_on_zeros() -> None:
    array = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    variants = [array, array.T, array[::-1], jnp.zeros((8, 8)), jnp.zeros((8, 9)), array.at[0, 0].set(-0.0)]
    assert len({tuple(sums([variant])) for variant in variants}) == len(variants)


def test_another_mesh_computes_the_same_checksums() -> None:
    whole, rows, columns = PartitionSpec(), PartitionSpec("fsdp"), PartitionSpec(None, "fsdp")
    with cpu_devices(8) as devices:
        tree = state(2) | {
            "params": {"embed": jnp.arange(512.0).reshape(16, 32), "layers": {"up": jnp.ones((3, 16, 8))}}
        }
        where = {"params": {"embed": rows, "layers": {"up": columns}}, "moments": columns, "count": whole}
        alone = sums(tree)
        for shape in ((2, 4), (8, 1), (1, 8)):
            mesh = Mesh(np.array(devices).reshape(shape), ("data", "fsdp"))
            placed = jax.tree.map(partial(NamedSharding, mesh), where)
            assert sums(jax.device_put(tree, placed)) == alone


class Loading:
    """Checkpoints of a folder, and the events that a restore reports."""

    def __init__(self, folder: Path):
        self.events: list[tuple[str, dict[str, Any]]] = []
        config = CheckpointConfig(timeout_s=10)
        self.checkpoints = Checkpoints(
            FolderStore(folder),
            Cluster(Membership()),
            config,
            report=lambda kind, **details: self.events.append((kind, details)),
        )

    def restore(self) -> Restored:
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state(0)
        )
        return self.checkpoints.restore(abstract)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoints of `STEPS`."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoints = Loading(folder).checkpoints
    for step in STEPS:
        assert not checkpoints.save(step, state(step))
    checkpoints.wait()
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "run")


def flip(raw: bytes, at: int, bit: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the first byte": lambda raw: flip(raw, 0, 1),
    "a bit in the middle": lambda raw: flip(raw, len(raw) // 2, 0),
    "a bit of the last byte": lambda raw: flip(raw, len(raw) - 1, 6),
    "half of it": lambda raw: raw[: len(raw) // 2],
    "one byte more": lambda raw: raw + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whatever_file_is_damaged_no_other_numbers_are_restored(
    copy: Path, damage: Callable[[bytes], bytes]
) -> None:
    files = [path for path in sorted((copy / "checkpoints/30").rglob("*")) if path.is_file()]
    assert len(files) > 10
    passed_over = 0
    for path in files:
        raw = path.read_bytes()
        if not raw:
            continue
        path.write_bytes(damage(raw))
        restored = Loading(copy).restore()
        path.write_bytes(raw)
        assert same(restored.state, state(restored.step)), path
        if restored.step != 30:
            assert restored.step == 20
            ((step, reason),) = restored.passed_over
            assert step == 30
            assert reason
            passed_over += 1
    assert passed_over >= 1


def test_one_flipped_bit_anywhere_in_sixty_tries(copy: Path) -> None:
    files = [path for path in sorted((copy / "checkpoints/30").rglob("*")) if path.is_file()]
    rng, reasons = random.Random(5), []
    for _ in range(60):
        (path,) = rng.choices(files, weights=[path.stat().st_size for path in files])
        raw = path.read_bytes()
        path.write_bytes(flip(raw, rng.randrange(len(raw)), rng.randrange(8)))
        restored = Loading(copy).restore()
        path.write_bytes(raw)
        assert same(restored.state, state(restored.step)), path
        reasons += [reason for _, reason in restored.passed_over]
    assert any("not the numbers that were saved" in reason for reason in reasons)


def test_a_checkpoint_of_an_earlier_version_is_restored_and_named(copy: Path) -> None:
    loading = Loading(copy)
    (copy / "checkpoints/30/checksums.json").unlink()
    restored = loading.restore()
    assert restored.step == 30
    assert same(restored.state, state(30))
    ((kind, details),) = loading.events
    assert (kind, details["step"]) == ("not-compared", 30)
    assert "earlier version" in details["reason"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"step": 20}', "is of step 20"),
        ('{"step": 30}', "not the numbers that were saved"),
        ('{"step": 30, "arrays": {"[\'count\']": "x"}}', "and 3 more arrays: not the numbers"),
        ('{"step": 30, "arrays": []}', "arrays = list: must be an object"),
        ("9" * 2_000_000, "has more than"),
    ],
)
def test_checksums_that_arent_those_of_the_step_are_no_proof(copy: Path, content: str, reason: str) -> None:
    (copy / "checkpoints/30/checksums.json").write_text(content)
    restored = Loading(copy).restore()
    assert restored.step == 20
    assert reason in restored.passed_over[0][1]


def test_a_copy_without_markers_is_refused_and_nothing_is_removed(copy: Path) -> None:
    for step in STEPS:
        (copy / f"checkpoints/{step}/commit_success.txt").unlink()
    files = sorted(copy.rglob("*"))
    with pytest.raises(HopelessError, match=r"steps 10, 20, 30 have no commit_success\.txt") as refused:
        Loading(copy).restore()
    assert "create an empty commit_success.txt" in str(refused.value)
    assert sorted(copy.rglob("*")) == files
    (copy / "checkpoints/20/commit_success.txt").touch()
    restored = Loading(copy).restore()
    assert restored.step == 20
    assert same(restored.state, state(20))


@pytest.mark.parametrize("ended", [False, True])
def test_a_step_without_its_marker_alone_is_that_of_a_kill_unless_the_run_has_ended(
    copy: Path, ended: bool
) -> None:
    for step in (10, 20):
        shutil.rmtree(copy / f"checkpoints/{step}")
    (copy / "checkpoints/30/commit_success.txt").unlink()
    if ended:
        (copy / "final.json").write_text('{"step": 30}')
        with pytest.raises(HopelessError, match="were they copied"):
            Loading(copy).restore()
    else:
        assert Loading(copy).restore().step == 0
        assert not (copy / "checkpoints/30").exists()


def test_a_folder_in_place_of_checksums_is_passed_over(copy: Path) -> None:
    path = copy / "checkpoints/30/checksums.json"
    path.unlink()
    path.mkdir()
    assert Loading(copy).restore().step == 20


def damage_array(run: Path, step: int) -> None:
    """Change the checksum of an array: a fault in the array itself, whatever compression the files have."""
    path = run / f"checkpoints/{step}/checksums.json"
    content = json.loads(path.read_text())
    assert content["arrays"]["['params']['embed_VxD']"] != ["00000000"]
    content["arrays"]["['params']['embed_VxD']"] = ["00000000"]
    path.write_text(json.dumps(content))


def test_commands_refuse_a_damaged_checkpoint(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tokens))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    line = [*command("once", 4, 2), "--dir", str(tmp_path)]
    assert train(line) == 0
    run = tmp_path / "runs/once"
    final = (run / "final.json").read_bytes()
    damage_array(run, 4)
    capsys.readouterr()
    assert main(["checkpoints", "verify", str(run)]) == 1
    assert "4  " in (output := capsys.readouterr().out)
    assert "not the numbers that were saved" in output
    assert main(["checkpoints", "export", str(run), "--out", str(tmp_path / "hf")]) == 1
    assert "checkpoint 4 is damaged" in (refusal := capsys.readouterr().err)
    assert "fix: another step" in refusal
    assert main(["checkpoints", "export", str(run), "--out", str(tmp_path / "hf"), "--step", "2"]) == 0
    placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    embed = {"embed_VxD": jax.ShapeDtypeStruct((257, 32), jnp.bfloat16, sharding=placed)}
    with pytest.raises(RunError, match="checkpoint 4 is damaged"):
        Past.read(FolderStore(run)).params(4, embed)
    assert Past.read(FolderStore(run)).params(2, embed)["embed_VxD"].dtype == jnp.bfloat16
    assert train(line) == 0
    assert (run / "final.json").read_bytes() == final
    capsys.readouterr()
    assert main(["checkpoints", "verify", str(run)]) == 0, "the step was saved anew"
