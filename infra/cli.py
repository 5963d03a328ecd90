"""The Pulumi CLI as the commands of this package call it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra import names
from infra.errors import CommandError, InfraError
from infra.settings.sources import ROOT


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
            raise CommandError(
                "pulumi is not on PATH: run `make setup`, then use make, or .venv/bin first on PATH"
            )
        self.program = program
        self.environment = environment
        self.root = root
        self.output = output
        self.variables = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true", **(variables or {})}

    def directory(self, layer: str) -> Path:
        """The folder with a layer's Pulumi.yaml."""
        return self.root / names.project_directory(layer)

    def _call(self, layer: str, *arguments: str) -> list[str]:
        return [self.program, "-C", str(self.directory(layer)), *arguments]

    def show(self, layer: str, *arguments: str) -> None:
        """Run a command with its output where ours goes. Raises CommandError if it fails."""
        call = self._call(layer, *arguments)
        if subprocess.run(call, env=self.variables, stdout=self.output, check=False).returncode != 0:
            raise CommandError(f"`pulumi {arguments[0]}` of {layer} failed; what it said is above")

    def ask(self, layer: str, *arguments: str) -> str:
        """What a command prints. Raises CommandError with its complaint if it fails."""
        call = self._call(layer, *arguments)
        answer = subprocess.run(call, env=self.variables, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            said = next(
                (line for line in answer.stderr.splitlines() if line.startswith("error:")), answer.stderr
            )
            raise CommandError(f"`pulumi {arguments[0]}` of {layer} failed: {said.strip()}")
        return answer.stdout

    def hear(self, layer: str, *arguments: str) -> tuple[bool, str]:
        """Whether a command went well, and all that it printed, for when several run at once."""
        call = self._call(layer, *arguments, "--color", "always" if sys.stdout.isatty() else "never")
        done = subprocess.run(
            call, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.returncode == 0, done.stdout

    def stacks(self, layer: str) -> set[str]:
        """Names of a layer's stacks in the backend that is logged in."""
        listed = json.loads(self.ask(layer, "stack", "ls", "--json", "--non-interactive"))
        return {stack["name"].rpartition("/")[2] for stack in listed}

    def state(self, layer: str) -> list[dict[str, Any]]:
        """The resources in a layer's state."""
        exported = json.loads(self.ask(layer, "stack", "export", "--stack", self.environment))
        resources: list[dict[str, Any]] = exported["deployment"].get("resources") or []
        return resources


def run(command: Callable[[], int]) -> int:
    """The exit status of `command`; what went wrong is said in its own words, never as a traceback."""
    try:
        return command()
    except InfraError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
