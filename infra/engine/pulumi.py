"""Calls of the Pulumi CLI."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from infra.core import acting, secrets
from infra.core.layer import directory as directory_of
from infra.core.layer import up_command
from infra.engine import projects, registry
from infra.engine.placeholders import filled
from infra.engine.roles import with_roles
from infra.engine.settings import from_file
from infra.errors import CommandError, InfraError, UpdateError
from infra.google.failures import Kind, classify
from infra.settings.sources import INSTALLED, ROOT

_NO_PASSPHRASE, _NO_STACK = "passphrase must be set", "no stack named"
_NO_LOGIN = "PULUMI_ACCESS_TOKEN must be set"
NO_LOGIN = (
    "pulumi isn't logged in\n"
    "    fix: pulumi login gs://BUCKET, or `pulumi login --local` to keep the state on this machine"
)
# What the official provider writes around its sentence, as recorded with 9.35.0.
_FRAME = re.compile(r"sdk-v2/\S+\.go:\d+: (?:sdk\.\w+: )?|: provider=google(?:-beta)?@[\d.]+\d")
_COLOUR = re.compile(r"<\{%[a-z0-9 -]*%\}>")  # in the messages of an event log
_SECRETS_PROVIDER = re.compile(r"(?m)^secretsprovider: *(?!passphrase|default)(\S+)")
NO_PASSPHRASE = (
    "no passphrase for the stacks' secrets: this backend wants one, though our stacks hold no secret\n"
    "    fix: export PULUMI_CONFIG_PASSPHRASE='TEXT' (any, and from then on the same; it may be empty), or "
    "PULUMI_CONFIG_PASSPHRASE_FILE=FILE with the text in it"
)


# Among its events once it has had a signal; the pinned CLI was tried with SIGTERM.
_CANCELLING, _OWN_SIGNAL_S = "received; cancelling", 2.0
# Saved plans are an experiment of Pulumi's: https://www.pulumi.com/docs/iac/concepts/update-plans/
_OURS = {"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_EXPERIMENTAL": "true"}


class Pulumi:
    """Runs `pulumi` for one environment's stacks, found on PATH, in the project at `root`."""

    def __init__(
        self,
        environment: str,
        root: Path = ROOT,
        variables: Mapping[str, str] | None = None,
        output: int | None = None,
    ):
        program = shutil.which("pulumi")
        if program is None:
            how = "see tpu doctor" if INSTALLED else "make setup, then use make, or .venv/bin first on PATH"
            raise CommandError(f"pulumi is not on PATH\n    fix: {how}")
        self.program = program
        self.environment = environment
        self.root = root
        self.output = output
        self.variables = {**_OURS, **os.environ, **(variables or {})}
        if INSTALLED:
            # The interpreter that has the wheel runs the program.
            self.variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.variables['PATH']}"
            if root == ROOT:
                projects.write(root)

    def directory(self, layer: str) -> Path:
        """Return the folder of a layer's Pulumi.yaml."""
        return self.root / directory_of(layer)

    def _call(self, layer: str, *arguments: str) -> list[str]:
        return [self.program, "-C", str(self.directory(layer)), *arguments]

    def show(self, layer: str, *arguments: str) -> None:
        """Run a command with its output where ours goes. Raises UpdateError if it fails.

        An interruption of ours is raised once it has ended in order. The terminal sends Ctrl+C to both; a
        SIGTERM to us alone is passed on, or it would work on by itself. A second signal ends it in disorder.
        """
        interruption: BaseException | None = None
        with tempfile.NamedTemporaryFile(prefix="events-") as events:
            call = self._call(layer, *arguments, "--event-log", events.name)
            shown = {**self.variables, "PULUMI_DEBUG_COMMANDS": "true"}  # which --event-log wants
            with _exit_on_sigterm(), subprocess.Popen(call, env=shown, stdout=self.output) as process:
                while process.returncode is None:
                    try:
                        process.wait()
                    except KeyboardInterrupt as ctrl_c:
                        interruption = ctrl_c
                    except SystemExit as end:
                        if interruption is None and not _cancels(process, Path(events.name)):
                            process.send_signal(signal.SIGINT)
                        interruption = end
            if interruption:
                print(f"\ninterrupted: the same command settles {layer}, then continues", file=sys.stderr)
                raise interruption
            if process.returncode != 0:
                messages = errors(map(json.loads, events.read().decode().splitlines()))
                lacking = _lacking(messages, layer, self.environment, self.root)
                fixes = "".join(f"\n    fix: {fix}" for fix in lacking)
                failed = f"`pulumi {arguments[0]}` of {layer} failed; see the output above{fixes}"
                raise UpdateError(failed, messages)

    def execute(self, layer: str, *arguments: str, given: str = "") -> str:
        """Run a command without questions, with `given` on its standard input; return its output.

        Raises CommandError with its complaint if it fails.
        """
        call = [*self._call(layer, *arguments), "--non-interactive"]  # its questions would not be seen
        answer = subprocess.run(
            call, env=self.variables, input=given, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            # An update tells what went wrong where it tells all else.
            lines = [line.strip() for line in f"{answer.stderr}\n{answer.stdout}".splitlines()]
            output = "; ".join(dict.fromkeys(line for line in lines if "error:" in line)) or answer.stderr
            for text, instead in ((_NO_PASSPHRASE, NO_PASSPHRASE), (_NO_LOGIN, NO_LOGIN)):
                output = instead if text in answer.stderr else output
            output = _FRAME.sub("", output).strip()
            raise CommandError(f"`pulumi {arguments[0]}` of {layer} failed: {output}")
        return answer.stdout

    def capture(self, layer: str, *arguments: str) -> tuple[bool, str, list[dict[str, Any]]]:
        """Run a command beside others; return success, output and events."""
        with tempfile.NamedTemporaryFile(prefix="events-") as events:
            call = self._call(layer, *arguments, "--color", "never", "--event-log", events.name)
            done = subprocess.run(
                call,
                env={**self.variables, "PULUMI_DEBUG_COMMANDS": "true"},  # which --event-log wants
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            logged = [json.loads(line) for line in events.read().decode().splitlines()]
        return done.returncode == 0, sentence(done.stdout), logged

    def stacks(self, layer: str) -> set[str]:
        """Names of a layer's stacks in the backend that is logged in."""
        listed = json.loads(self.execute(layer, "stack", "ls", "--json"))
        return {stack["name"].rpartition("/")[2] for stack in listed}

    def create(self, layer: str) -> None:
        """Make a layer's stack, whose secrets the key encrypts that the settings' file names, if it does."""
        name = f"Pulumi.{self.environment}.yaml"
        places = (self.directory(layer) / name, self.root / name)
        text = next((path.read_text(encoding="utf-8") for path in places if path.is_file()), "")
        keyed = _SECRETS_PROVIDER.search(text)
        options = ("--secrets-provider", keyed[1]) if keyed else ()
        self.execute(layer, "stack", "init", self.environment, *options)

    def export(self, layer: str) -> dict[str, Any] | None:
        """Return a layer's whole state, as `pulumi stack import` takes it; None without a stack."""
        try:
            state: dict[str, Any] = json.loads(
                self.execute(layer, "stack", "export", "--stack", self.environment)
            )
        except CommandError as error:
            if _NO_STACK in str(error):
                return None
            raise
        return state

    def state(self, layer: str) -> list[dict[str, Any]]:
        """Return the resources in a layer's state; none without a stack."""
        state = self.export(layer) or {"deployment": {}}
        return state["deployment"].get("resources") or []

    def backend(self) -> str:
        """Return the backend's URL, such as `gs://NAME`, `file:///FOLDER`, `https://app.pulumi.com/ME`."""
        at_root = next(layer for layer in registry.layers() if layer.directory == ".")
        return str(json.loads(self.execute(at_root.name, "whoami", "--json"))["url"])

    def require_passphrase(self) -> None:
        """Raise CommandError where Pulumi would ask for a passphrase.

        A folder or bucket as backend encrypts stack secrets by a passphrase, unless the settings' file names
        a key; our stacks hold no secrets, and Pulumi wants the passphrase all the same.
        """
        if {"PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"} & self.variables.keys():
            return
        path = self.root / f"Pulumi.{self.environment}.yaml"
        keyed = path.is_file() and _SECRETS_PROVIDER.search(path.read_text(encoding="utf-8"))
        if not keyed and not self.backend().startswith("http"):
            raise CommandError(NO_PASSPHRASE)


def leave(number: int, _: object) -> None:
    """Exit by a signal, with the status that a shell gives it."""
    raise SystemExit(128 + number)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM meanwhile, where it would end this process at once."""
    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _cancels(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Return True if `pulumi` had the signal, too: a whole group may get it, as from `timeout`."""
    until = time.monotonic() + _OWN_SIGNAL_S
    while process.poll() is None and time.monotonic() < until:
        if _CANCELLING in log.read_text(encoding="utf-8", errors="replace"):
            return True
        time.sleep(0.1)
    return process.returncode is not None


def sentence(message: str) -> str:
    """Strip colours and the official provider's frame from a message."""
    return _COLOUR.sub("", _FRAME.sub("", message)).strip("\n")


def errors(events: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the errors of Pulumi's events by the resource's URN; "" for those of the whole update."""
    messages: dict[str, list[str]] = {}
    for event in events:
        diagnostic = event.get("diagnosticEvent", {})
        if diagnostic.get("severity") == "error":
            message = sentence(str(diagnostic["message"])).strip()
            messages.setdefault(str(diagnostic.get("urn", "")), []).append(message)
    return messages


def _lacking(errors: Mapping[str, Sequence[str]], layer: str, environment: str, root: Path) -> Iterator[str]:
    """Yield what somebody must do first, by an update's errors: grants, quotas, policies, a login, secrets.

    An account that the layer makes may be what lacks one.
    """
    if not errors:
        return iter(())
    settings, declared = from_file(environment, root), registry.named(layer)
    grants: dict[str, None] = {}
    for message in chain(*errors.values()):
        # Of an account that is acted as first: its address may be that of an account that lacks a grant.
        grant = acting.refused(message, declared, settings) or declared.hooks.missing_grant(settings, message)
        if grant:
            grants[f"grant {grant}"] = None
        elif secret := secrets.absent(message):
            again = up_command(layer, environment)
            grants[f"{secrets.creation(settings.project, secret)}, then {again}"] = None
        elif (failure := classify(message)).kind in (Kind.PERMISSION, Kind.POLICY, Kind.QUOTA, Kind.LOGIN):
            grants[with_roles(failure.fix)] = None
    return (filled(fix, settings, partial(_member, settings.project)) for fix in grants)


def _member(project: str) -> str:
    from infra.google.client import Client, member  # here, so that no command waits for Google's libraries

    return member(Client(project, tries=1))


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `yes`. Raises CommandError without one, or at any answer but yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask at\n    fix: --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


def run(command: Callable[[], int]) -> int:
    """Return the exit status of `command`, or of its InfraError, which is printed."""
    try:
        return command()
    except InfraError as error:
        print(f"error: {with_roles(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
