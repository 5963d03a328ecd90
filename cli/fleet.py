"""`tpu fleet`, and the commands of it that `tpu` has at its top: options into a `fleet.request.Request`."""

import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from cli import log, options
from cli.command import Command, Group, end_on_signals
from cli.options import COUNT, PATH, PORT, SECONDS, Names, combined
from fleet import deploy as deployment
from fleet import hosts, observing, recovery, removal
from fleet import monitor as monitoring
from fleet.adhoc import described
from fleet.remote_exec import Remote
from fleet.request import FleetCommand
from fleet.ssh import Forward
from infra.doctor.machine import report as report_machine

_SELECTION = combined(
    options.environment,
    click.option("--slice", "slices", multiple=True, metavar="NAME",
                 help="Only this item of tpu:slices; repeatable."),
    click.option("--zones", type=Names(), default=(), metavar="ZONE,…", help="Only these zones."),
    click.option("--workers-per-zone", type=COUNT, metavar="N",
                 help="Only the first N slices in each zone."),
)  # fmt: skip
_ADHOC = combined(
    click.option("--tpu-type", metavar="TYPE",
                 help="A fleet outside the settings file, of v6e-8 for example; with --zones."),
    click.option("--on-demand", is_flag=True, help="With --tpu-type: rent on demand instead of spot."),
    click.option("--run", "run_command", metavar="LINE", help="With --tpu-type: command line of the hosts."),
    click.option("--replace", is_flag=True,
                 help="With --tpu-type: take a fleet of this name over from another program."),
)  # fmt: skip
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show the changes, and stop.")
_CHANGE = combined(options.as_json, options.yes, _DRY_RUN)
_INTERVAL = click.option("--monitor-interval", type=SECONDS, default=60, show_default=True, metavar="S",
                         help="Seconds between observations.")  # fmt: skip
_PORT = click.option("--port", type=PORT, metavar="PORT",
                     help="Serve a web dashboard on this port of localhost; 0: any free port.")  # fmt: skip
_WATCH = click.option("--watch", is_flag=True, help="Only observe; recover nothing.")
_REMOTE = combined(
    click.option("--partial", is_flag=True, help="Skip slices that aren't READY and unreachable hosts."),
    click.option("--timeout-s", type=SECONDS, default=600, show_default=True, metavar="S",
                 help="Maximum run time of the command on a host."),
    click.option("--parallel", type=COUNT, default=32, show_default=True, metavar="N",
                 help="Simultaneous connections."),
    click.option("--logs", type=PATH, default=Path("fleet-logs"),
                 show_default=True, metavar="DIR",
                 help="Folder for the workers' logs."),
)  # fmt: skip


class _Forward(click.ParamType[Forward, Any]):
    """A port of this machine, and the worker's if that is another one."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Forward:
        """Return the ports."""
        ports = [int(text) if re.fullmatch("[1-9][0-9]{0,4}", text) else 0 for text in str(value).split(":")]
        if len(ports) > 2 or not all(0 < port < 2**16 for port in ports):
            self.fail(f"{value}: a port of 1 to 65535, or PORT:REMOTE, as in 8888 or 8889:8888", param, ctx)
        return Forward(ports[0], ports[-1])


_EPILOG = """\b
Examples:
  tpu fleet create dev --tpu-type v6e-8 --zones us-east5-a,us-east5-b
  tpu fleet monitor dev --port 8899
  tpu fleet exec dev -- hostname
"""


@click.group(cls=Group, epilog=_EPILOG)
def fleet() -> None:
    """Keep the slices of an environment working, as Pulumi.ENV.yaml lists them."""


def _request(values: dict[str, Any]) -> FleetCommand:
    """Take the options of `_SELECTION`, `_ADHOC` and `_CHANGE` out of `values`."""
    kind, on_demand = values.pop("tpu_type", None), values.pop("on_demand", False)
    run = values.pop("run_command", None)
    names = ("environment", "slices", "zones", "workers_per_zone", "yes", "as_json", "dry_run", "replace")
    typed = {name: values.pop(name) for name in names if name in values}
    adhoc = kind and described(
        kind, typed["slices"], typed["zones"], typed["workers_per_zone"] or 1, spot=not on_demand, run=run
    )
    return FleetCommand(**typed, adhoc=adhoc or None)


def _command(
    name: str, *parameters: Callable[..., Any], examples: str, words: str = ""
) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that adds a command to the group; it receives a FleetCommand and the rest."""

    def decorate(function: Callable[..., int]) -> click.Command:
        @wraps(function)
        def run(**values: Any) -> int:
            end_on_signals()  # as service managers end a monitor
            request = _request(values)
            return function(request, **values)

        decorated = combined(_SELECTION, *parameters)(run)
        return fleet.command(name, cls=Command, examples=examples.splitlines(), words=words)(decorated)

    return decorate


@_command("create", _ADHOC, _CHANGE,
          examples="dev --tpu-type v6e-8 --zones us-east5-a,us-east5-b --workers-per-zone 2")  # fmt: skip
def create(request: FleetCommand) -> int:
    """Create the members that don't exist; give living ones new settings, applied at their next boot."""
    return recovery.create(request)


@_command("delete", click.option("--orphans", is_flag=True, help="Delete nodes outside the settings, too."),
          _CHANGE, examples="dev --slice extract --yes")  # fmt: skip
def delete(request: FleetCommand, orphans: bool) -> int:
    """Delete members; their checkpoints, shards and the bucket stay."""
    return removal.delete(request, orphans=orphans)


@_command("status", options.as_json,
          click.option("--watch", is_flag=True, help="Observe again and again, until Ctrl+C."),
          _INTERVAL, _PORT, log.monitor_option, examples="dev --json\ndev --watch --port 8899")  # fmt: skip
def status(request: FleetCommand, watch: bool, monitor_interval: int, port: int | None) -> int:
    """Show every member: its state at Google and on its workers, and the next action."""
    if watch:
        return _monitor(request, monitoring.Monitoring(True, monitor_interval, port))
    if port is not None:
        raise click.UsageError("--port: only with --watch")
    return observing.status(request)


@_command("list", options.as_json, examples="dev")
def list_nodes(request: FleetCommand) -> int:
    """List every node of the environment in any zone, with orphans unless slices are selected."""
    return observing.list_nodes(request)


@_command("recover", _CHANGE, examples="dev --yes")
def recover(request: FleetCommand) -> int:
    """Recreate the members that Google preempted or deleted, and nothing else."""
    return recovery.recover(request)


@_command("take-over", _CHANGE, examples="dev --slice extract")
def take_over(request: FleetCommand) -> int:
    """Adopt another stack's members, after a question; for a fleet whose stack is lost."""
    return removal.take_over(request)


@_command(
    "deploy", _ADHOC, options.yes, _DRY_RUN,
    click.option("--source", multiple=True, metavar="PATH", help="Samples: a file or folder; repeatable."),
    click.option("--max-samples", type=COUNT, metavar="N", help="Maximum samples per stream, for a trial."),
    click.option("--skip-dataset", is_flag=True, help="The streams are in the bucket already."),
    click.option("--create-tpus", is_flag=True, help="Create the slices that don't exist."),
    click.option("--skip-launch", is_flag=True, help="Prepare and publish only."),
    click.option("--monitor", "then_monitor", is_flag=True, help="Monitor the fleet afterwards."),
    click.option("--timeout-s", type=SECONDS, default=3600, show_default=True, metavar="S",
                 help="Maximum wait until all work."),
    _WATCH, _INTERVAL, _PORT, log.monitor_option, words="OPTION of `workload data streams`",
    examples="dev --slice extract --source prompts.jsonl --create-tpus --monitor -- --id id",
)  # fmt: skip
def deploy(
    request: FleetCommand, source: tuple[str, ...], max_samples: int | None, skip_dataset: bool,
    create_tpus: bool, skip_launch: bool, then_monitor: bool, timeout_s: int, watch: bool,
    monitor_interval: int, port: int | None, words: tuple[str, ...],
) -> int:  # fmt: skip
    """Split samples, publish the workload, create the slices, and wait until all of them work."""
    samples = ["--max-samples", str(max_samples)] if max_samples else []
    dataset = None if skip_dataset else deployment.Dataset(source, (*samples, *words))
    then = monitoring.Monitoring(watch, monitor_interval, port) if then_monitor else None
    steps = deployment.Steps(dataset, not skip_launch, create_tpus, timeout_s)
    if (status := deployment.deploy(request, steps)) or then is None or request.dry_run or skip_launch:
        return status
    return _monitor(request, then)


@_command(
    "monitor", _WATCH, _INTERVAL, _PORT, log.monitor_option, examples="dev --monitor-interval 30 --port 8899"
)
def monitor(request: FleetCommand, watch: bool, monitor_interval: int, port: int | None) -> int:
    """Observe and recover the members until Ctrl+C, which leaves them as they are."""
    return _monitor(request, monitoring.Monitoring(watch, monitor_interval, port))


def _monitor(request: FleetCommand, options: monitoring.Monitoring) -> int:
    try:
        return monitoring.monitor(request, options)
    except KeyboardInterrupt:
        line = f"nothing is recovered from now on; to resume: tpu fleet monitor {request.environment}"
        print(f"\nstopped\n{line}", file=sys.stderr)
        return 130


@_command("exec", options.as_json, _REMOTE, words="COMMAND",
          examples="dev --slice extract -- sudo systemctl restart google-startup-scripts")  # fmt: skip
def execute(request: FleetCommand, words: tuple[str, ...], **remote: Any) -> int:
    """Run a command on every worker or on none; save each output, report the first failure.

    A single word is a line of shell; several words are passed unchanged.
    """
    return hosts.execute(request, Remote(**remote), words)


@_command("restart", options.as_json, options.yes, _REMOTE, examples="dev --slice extract")
def restart(request: FleetCommand, **remote: Any) -> int:
    """Restart the job on every worker: stop it on all, then start it on all; the hosts keep running."""
    return hosts.restart(request, Remote(**remote))


@_command("ssh",
          click.argument("node", metavar="[NODE]", required=False, help="a node, or a slice with one node"),
          click.option("--worker", type=int, default=0, show_default=True, metavar="N", help="Host number."),
          click.option("--forward", "forwards", type=_Forward(), multiple=True, metavar="PORT[:REMOTE]",
                       help="Forward a port of localhost to the worker, and open no shell; repeatable."),
          words="COMMAND", examples="dev tpu-us-east5-a-0 --worker 1")  # fmt: skip
def ssh(
    request: FleetCommand, node: str | None, worker: int, forwards: tuple[Forward, ...],
    words: tuple[str, ...],
) -> int:  # fmt: skip
    """Log in to one worker, run a command there, or forward ports to it."""
    return hosts.login(request, node, worker, words, forwards)


@_command("doctor", options.as_json, examples="dev")
def doctor_of_environment(request: FleetCommand) -> int:
    """Report what keeps the fleet from working: login, APIs, roles, quotas, zones, stacks, bundle."""
    return observing.doctor(request)


@click.command("doctor", cls=Command, examples=["", "dev"])
@click.argument("environment", metavar="[ENV]", required=False, type=options.Environment(),
                help="an environment; without one only this machine is checked")  # fmt: skip
@options.as_json
def doctor(environment: str | None, as_json: bool) -> int:
    """Report what is missing on this machine, or what keeps an environment from working."""
    if environment:
        return observing.doctor(FleetCommand(environment, as_json=as_json))
    return report_machine(as_json)


@fleet.command("unit", cls=Command, examples=["dev"])
@options.environment
def unit(environment: str) -> int:
    """Print a systemd unit that runs a controller on a machine with a checkout."""
    return observing.print_unit(environment)
