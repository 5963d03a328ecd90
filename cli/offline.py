"""`tpu job` without a cluster: manifests, images."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from infra.errors import CommandError, InputError, listed
from infra.layers.gke import pools
from infra.layers.gke.settings import GkeSettings
from infra.layers.queue.jobs.jobset import Job, jobset
from infra.layers.queue.settings import QueueSettings
from infra.layers.storage.settings import StorageSettings
from infra.publish import image as context
from infra.settings import commands, rules
from infra.settings.schema import Settings
from infra.slices.settings import TpuSettings
from workload.errors import ConfigError
from workload.train.config import load


def refuse_config(program: Sequence[str], folder: Path | None = None) -> None:
    """Raise InputError for arguments, or a config of `folder` or packaged, that the trainer would refuse."""
    run = shlex.join(program)
    if wrong := [*commands.wrong_options("PROGRAM", run)]:
        behind = "in `tpu run` the trainer's options stand behind --: -- --name first"
        problems = [replace(problem, fix=f"{problem.fix}; {behind}") for problem in wrong]
        raise InputError(listed("the command", problems))
    if not (training := commands.training(run)):
        return
    path = folder / training.config if folder else None
    own = str(path) if path and path.is_file() else ""
    if own or training.config in commands.PACKAGED["train"]:
        try:
            load(own or training.config, training.changes)
        except ConfigError as error:
            raise InputError(str(error)) from None


def manifest(settings: Settings, job: Job, out: str) -> int:
    """Write a job's manifest to the file `out` (-: standard output), with the commands that apply it."""
    name, region = settings[GkeSettings].cluster_name, pools.region(settings)
    login = (
        f"gcloud container clusters get-credentials {name} --location {region} --project {settings.project}"
        " --dns-endpoint"
    )
    apply = f"kubectl apply --server-side -f {'FILE' if out == '-' else shlex.quote(out)}"
    text = f"# {login}\n# {apply}\n{yaml.safe_dump(jobset(job), sort_keys=False)}"
    if out == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        path = out or "''"
        raise CommandError(
            f"--out {path}: {error.strerror}\n    fix: a file in an existing folder, or -"
        ) from None
    print(f"{out} is written\n  next: {login}\n        {apply}")
    return 0


def image(settings: Settings, folder: Path, *, base: str, repository: str, account: str) -> int:
    """Write the context from which an image of the published bundle is built.

    Args:
        settings: of the environment.
        folder: of the context.
        base: image to begin with, by digest; empty: queue:image.
        repository: HOST/PATH without a tag; empty: the project's.
        account: email of the service account that builds; empty: the default one.
    """
    desired, bundle = settings[QueueSettings], settings[TpuSettings].bundle
    base = base or (desired.image if desired.install == "bundle" else None) or ""
    if not rules.DIGEST.ok(base):
        raise InputError(f"--base {base or '(nothing)'}: {rules.DIGEST.text}\n    fix: {rules.DIGEST.fix}")
    if not bundle:
        raise CommandError(f"no bundle is published\n    fix: tpu publish {settings.environment}")
    region, project = pools.region(settings), settings.project
    name = repository or f"{region}-docker.pkg.dev/{project}/images/workload"
    read = context.from_bucket(project, settings[StorageSettings].bucket_name, settings.environment)
    account = f"projects/{project}/serviceAccounts/{account}" if account else ""
    show = partial(print, " ", flush=True)
    for path in context.write(folder, bundle, read, base, name, account, show):
        print(f"{path} is written")
    steps = context.next_steps(folder, project, region, name, settings.environment)
    print("next:", "\n      ".join(steps))
    return 0
