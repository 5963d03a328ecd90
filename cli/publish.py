"""`tpu publish ENV`: build the bundle, upload it, record its id."""

import json

import click

from cli import options
from cli.command import Command
from infra.publish import publishing
from infra.publish.publishing import LOCKS, default_lock
from views.console import Terminal


@click.command(cls=Command, examples=["dev"])
@options.environment
@click.option("--lock", type=click.Choice(LOCKS), default=default_lock,
              help="Packages of a real host (tpu), of a rehearsed one (cpu), or none (bare); "
              "default: $TPU_LOCK, or tpu.")  # fmt: skip
@click.option("--tensorflow", is_flag=True, help="Include TensorFlow, whatever tpu:tensorflow is.")
@click.option("--bucket", help="Another bucket; ENV's settings are neither read nor changed then.")
@options.as_json
@click.option("--dry-run", is_flag=True, help="Build the bundle; upload and record nothing.")
def publish(
    environment: str, lock: str, tensorflow: bool, bucket: str | None, as_json: bool, dry_run: bool
) -> int:
    """Upload the packages and code for ENV's hosts to its bucket, by content hash."""
    report = publishing.publish_environment(
        environment, progress(), lock, tensorflow=tensorflow, bucket=bucket, dry_run=dry_run
    )
    if as_json:
        print(json.dumps(report, indent=2))
    return 0


def progress() -> Terminal:
    """Return the console for progress, on standard error."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True)
