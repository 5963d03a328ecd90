"""How long `tpu status` takes as a whole, from a cold interpreter to its last line.

A thousand nodes, each with a word of its boot and one of its work, in the emulated cloud; the command is
the user's own, in a copy of the tree with an environment's file, and asks by Google's own names, with TLS.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.emulated import BUCKET, CONFIG, ENVIRONMENT, STACK, Emulated
from benchmarks.machine import spread
from infra.engine.settings import from_file
from infra.slices.nodes import Node, nodes
from rehearsal.world.program import copy_program

AT_MOST_S = 2.0


def measure(members: Sequence[Node], rounds: int) -> dict[str, Any]:
    """Seconds of the command, and of processor that it took."""
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        Emulated(Path(folder), {member.zone for member in members}) as cloud,
    ):
        cloud.create(members, 600)
        speak(cloud, members)
        tree = checkout(Path(folder) / "tree", members)
        once(cloud, tree)  # the first of a fresh checkout compiles its modules
        before = cloud.control.status()["requests"]["methods"]
        runs = [once(cloud, tree) for _ in range(rounds)]
        after = cloud.control.status()["requests"]["methods"]
    return {
        "seconds": spread([seconds for seconds, _, _ in runs]),
        "processor_s": spread([processor_s for _, processor_s, _ in runs]),
        "at_most_s": AT_MOST_S,
        "members": len(runs[0][2]["members"]),
        "requests": {
            name: (count["validated"] - before.get(name, {}).get("validated", 0)) // rounds
            for name, count in after.items()
            if count != before.get(name)
        },
    }


def once(cloud: Emulated, tree: Path) -> tuple[float, float, dict[str, Any]]:
    """Seconds, seconds of processor, and what the command said."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    line = [sys.executable, "-m", "fleet", "status", ENVIRONMENT, "--json"]
    done = subprocess.run(
        line,
        cwd=tree,
        env={**cloud.variables(), "TPU_STACK_ID": STACK},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    processor_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return seconds, processor_s, json.loads(done.stdout)


def speak(cloud: Emulated, members: Sequence[Node]) -> None:
    """A word of each member's boot and one of its work, as their hosts would write them."""
    url = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o?uploadType=multipart"
    work = {
        "state": "running", "samples": "1250", "of_samples": "5000", "shards": "12",
        "size_bytes": "12000000000",
    }  # fmt: skip

    def say(name: str, said: dict[str, str]) -> None:
        about, content = {"name": name, "metadata": said}, json.dumps(said)
        head = "--x\r\nContent-Type: application/json\r\n\r\n"
        parts = "".join(f"{head}{part}\r\n" for part in (json.dumps(about), content))
        headers = {"Content-Type": "multipart/related; boundary=x"}
        answer = cloud.session.post(url, data=f"{parts}--x--", headers=headers, timeout=60)
        assert answer.ok, answer.text

    def of(member: Node) -> None:
        say(f"boot/{member.name}/worker-0.json", {"state": "ready", "stage": "launch"})
        say(f"heartbeats/{member.name}/worker-0", work)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(of, members))


def checkout(tree: Path, members: Sequence[Node]) -> Path:
    """A copy of the program with an environment whose slices these are."""
    copy_program(tree)
    zones = list(dict.fromkeys(member.zone for member in members))
    fleet = {
        "name": members[0].slice, "acceleratorType": members[0].kind.name, "zones": zones,
        "count": len(members), "spot": True, "run": members[0].run,
    }  # fmt: skip
    config = {**CONFIG, "storage:allowCrossRegion": True, "tpu:slices": [fleet]}
    (tree / f"Pulumi.{ENVIRONMENT}.yaml").write_text(json.dumps({"config": config}))
    assert {one.name for one in nodes(from_file(ENVIRONMENT, tree))} == {one.name for one in members}
    return tree
