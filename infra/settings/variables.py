"""Environment variables of a program: plain values, and secrets of Secret Manager by name.

A slice, a job on GKE and a job of Slurm get the same variables. None of them holds a secret's value:
`TPU_SECRETS` names the secrets, and `workload secrets` reads them where the program starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from infra.errors import Problem
from settings_schema.rules import SHORT, Rule, pattern

REFERENCES = "TPU_SECRETS"
"""Variable with the references, NAME@VERSION:VARIABLE each (workload/host/secret_variables.py)."""
START = ("workload", "secrets", "--")
"""Words before a program that needs secrets."""
RESERVED = frozenset({
    "ACCELERATOR_TYPE", "CHECKPOINT_BUCKET", "CHECKPOINT_DIR", "CHECKPOINT_URL", "COORDINATOR_ADDRESS",
    "DATA_DIR", "HOME", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "PATH", "STEPS_BUCKET",
    "WORKER_COUNT", "WORKER_ID",
})  # fmt: skip
"""Variables that hosts, pods and the workload set themselves."""
PREFIXES = ("JOB_", "MEGASCALE_", "SLICE_", "SLURM_", "TPU_")
"""Beginnings of further ones."""
LOOKS_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bya29\.[\w-]{20}|\bAIza[\w-]{35}|\bgh[pousr]_\w{36}|\bhf_\w{30}"
    r"|(?i:\b(password|secret|api_key|token)\s*[=:]\s*['\"]?[\w/+-]{12})"
)
"""Google's and GitHub's tokens, private keys, and words that are followed by one."""
_MOST = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_SECRET = re.compile(
    rf"(?:(?P<variable>{_NAME.pattern})=)?(?P<name>[\w-]{{1,255}})(?:@(?P<version>latest|[1-9]\d{{0,8}}))?",
    re.ASCII,
)


def _free(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in RESERVED and not name.startswith(PREFIXES)


@dataclass(frozen=True)
class Secret:
    """A version of a secret, and the variable that gets its value."""

    variable: str
    name: str
    version: str = "latest"

    @property
    def reference(self) -> str:
        """Return the text that stands for it in `REFERENCES`."""
        return f"{self.name}@{self.version}:{self.variable}"


def secret(text: str) -> Secret | None:
    """Parse `[VARIABLE=]NAME[@VERSION]`; None if it isn't one. "hf-token" is the value of HF_TOKEN."""
    match = _SECRET.fullmatch(text)
    if match is None:
        return None
    variable = match["variable"] or match["name"].upper().replace("-", "_")
    return Secret(variable, match["name"], match["version"] or "latest") if _free(variable) else None


NAME = Rule(
    _free,
    "a variable's name, of letters, digits and _, at most 128, first no digit, and none that hosts set",
    f"rename it; hosts set {', '.join(f'{prefix}*' for prefix in PREFIXES)}, PATH, HOME, JAX_PLATFORMS and "
    'what docs/internals/architecture.md lists ("Paths on a host")',
)
VALUE = Rule(
    lambda text: text.isprintable() and SHORT.ok(text),
    f"a line of printable text, {SHORT.text}",
    "put a longer text into a file of the program's folder",
)
SECRET_NAME = pattern(
    r"[\w-]{1,255}", "a secret's name: letters, digits, - and _", "gcloud secrets list prints them"
)
SECRET = Rule(
    lambda text: secret(text) is not None,
    "[VARIABLE=]NAME[@VERSION], with a secret's name, a version (a number or latest), and a variable that "
    "hosts don't set",
    "write e.g. hf-token, which is HF_TOKEN, or HF_TOKEN=hf-token@3",
)


@dataclass(frozen=True)
class Variables:
    """Environment variables of a program, as `env` and `secrets` of the settings give them."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()

    @property
    def references(self) -> list[Secret]:
        """Return the secrets; texts that aren't any are left out."""
        return [parsed for parsed in map(secret, self.secrets) if parsed]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables as a host, a pod or sbatch gets them."""
        names = " ".join(parsed.reference for parsed in self.references)
        return {**self.env, **({REFERENCES: names} if names else {})}

    def started(self, command: Sequence[str]) -> list[str]:
        """Return a command that has them in its environment, beside those of `environment`."""
        return [*START, *command] if self.references else list(command)

    def with_(self, other: Variables) -> Variables:
        """Return these and others, whose plain values come before these."""
        return Variables({**self.env, **other.env}, tuple(dict.fromkeys((*self.secrets, *other.secrets))))

    def undeclared(self, path: str, known: Sequence[str], up: str) -> Iterator[Problem]:
        """Yield secrets that aren't `known`, those of storage:secrets; `up`: the command that grants."""
        for parsed in self.references:
            if parsed.name not in known:
                rule = f"programs may read the secrets of storage:secrets: {', '.join(known) or 'none'}"
                fix = f"add {parsed.name} to storage:secrets, then {up}"
                yield Problem(path, f'"{parsed.name}"', rule, fix)

    def problems(self, env: str, secrets: str) -> Iterator[Problem]:
        """Yield problems between variables; `env`, `secrets`: key paths or options of both."""
        for name, value in self.env.items():
            if LOOKS_SECRET.search(f"{name}={value}"):
                rule = "what looks like a secret is shown to whoever sees the slice or the job"
                fix = f"gcloud secrets create NAME --data-file=-, then {secrets} {name}=NAME"
                yield Problem(f"{env}.{name}", "a value that isn't printed", rule, fix)
        names = [*self.env, *(parsed.variable for parsed in self.references)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem(secrets, f'"{name}" twice', "a variable has one value", "remove the others")
        if len(names) > _MOST:
            fix = "put them into a file of the program's folder"
            yield Problem(env, f"{len(names)} variables", f"{_MOST} at most", fix)


NO_VARIABLES = Variables()


def of_options(env: Sequence[str], secrets: Sequence[str]) -> tuple[Variables, list[Problem]]:
    """Parse the values of `--env NAME=VALUE` and `--secret`; return also all problems."""
    pairs: dict[str, str] = {}
    problems: list[Problem] = []
    for text in env:
        name, equals, value = text.partition("=")
        if not equals:
            problems.append(Problem("--env", f"{text!a}", "NAME=VALUE", f"write e.g. {name or 'NAME'}=1"))
        elif name in pairs:
            problems.append(Problem("--env", f'"{name}" twice', "a variable has one value", "remove one"))
        pairs[name] = value
        for rule, part in ((NAME, name), (VALUE, value)) if equals else ():
            if not rule.ok(part):
                problems.append(Problem("--env", f"{part[:80]!a}", f"must be {rule.text}", rule.fix))
    for text in secrets:
        if not SECRET.ok(text):
            problems.append(Problem("--secret", f"{text[:80]!a}", f"must be {SECRET.text}", SECRET.fix))
    variables = Variables(pairs, tuple(secrets))
    return variables, [*problems, *variables.problems("--env", "--secret")]
