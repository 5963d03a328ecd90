"""The engineer in the world: login, ssh, Pulumi and the environment variables of their shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rehearsal.authority import SYSTEM_BUNDLE
from rehearsal.world.layout import Layout, cache_dir

# Who works here, and the project's owner, who only grants them their roles. On hosts they are one user.
PEOPLE = {
    "platform-engineer": "platform-engineer@example.com",
    "ml-engineer": "ml-engineer@example.com",
    "ci": "ci@build-project.iam.gserviceaccount.com",
}
OWNER = "owner@example.com"
LOGINS = {**PEOPLE, "owner": OWNER}
DEFAULT = "ml-engineer"
LOGIN = "engineer"
# How the fleet reaches a host, for its setting `fleet:ssh`: there is no Identity-Aware Proxy in here.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=60 {node}-w{worker} {command}"

# What a user's own environment may bring along; credentials and endpoints of a real cloud never do.
_INHERITED = (
    "LANG",
    "LC_ALL",
    "TERM",
    "COLORTERM",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TZ",
    "USER",
)


def write_login(home: Path, account: str, refresh_token: str, quota_project: str = "") -> Path:
    """Application default credentials of an account (`gcloud auth application-default login`)."""
    path = credentials(account, home)
    login = {
        "type": "authorized_user",
        "client_id": "rehearsal.apps.googleusercontent.com",
        "client_secret": "rehearsal",
        "refresh_token": refresh_token,
        **({"quota_project_id": quota_project} if quota_project else {}),
    }
    path.write_text(json.dumps(login, indent=1))
    path.chmod(0o600)
    return path


def credentials(account: str, home: Path | None = None) -> Path:
    """Return the path of the login of an account in LOGINS."""
    return (home or Path(os.environ["HOME"])) / f"{account}.json"


def login(account: str, home: Path | None = None) -> dict[str, str]:
    """Return the environment variables of a process in the world that is logged in as `account`."""
    path = str(credentials(account, home))
    return {
        "GOOGLE_APPLICATION_CREDENTIALS": path,
        "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": path,
        "CLOUDSDK_CORE_ACCOUNT": LOGINS[account],
    }


def write_ssh(home: Path) -> Path:
    """Write a key pair and a configuration for `ssh HOST`; return the public key."""
    folder = home / "ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / "id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", LOGIN, "-f", key], check=True)
    # A host that is made again has new keys and maybe another's address: nothing to remember here.
    (folder / "config").write_text(
        f"""Host *
  User {LOGIN}
  IdentityFile {key}
  IdentitiesOnly yes
  ProxyCommand {sys.executable} -m rehearsal.world.dial %h %p
  ProxyUseFdpass yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 15
"""
    )
    return key.with_suffix(".pub")


def write_programs(layout: Layout, kubernetes: Path | None) -> None:
    """Write the world's own programs: the kubectl of the control planes."""
    layout.bin.mkdir(exist_ok=True)
    if kubernetes:
        (layout.bin / "kubectl").symlink_to(kubernetes / "kubectl")


def builder(layout: Layout, project: str) -> dict[str, str]:
    """Return the environment variables of programs run by Google's services: no user's login among them."""
    variables = (
        "HOME",
        "PYTHONPATH",
        "GOOGLE_",
        "CLOUDSDK_",
        "REHEARSAL_",
        "PULUMI_BACKEND",
        "PULUMI_CONFIG",
    )
    every = environment(layout, project)
    return {name: value for name, value in every.items() if not name.startswith(variables)}


def environment(layout: Layout, project: str) -> dict[str, str]:
    """Every variable of a process in the world."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    bundle = str(SYSTEM_BUNDLE)
    venv = Path(sys.prefix)
    # libexec: the plug-in that kubeconfigs name, as builds have it.
    programs = f"{layout.bin}:{venv / 'bin'}:{venv / 'libexec'}"
    return {
        **inherited,
        "HOME": str(layout.home),
        "SHELL": "/bin/bash",
        "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "VIRTUAL_ENV": str(venv),
        "PYTHONPATH": str(layout.program),
        "REHEARSAL_WORLD": str(layout.root),
        "REHEARSAL_CONTROL": str(layout.control),
        # One bundle for Python's clients and gcloud; Go reads the system's, over which it is mounted.
        "SSL_CERT_FILE": bundle,
        "REQUESTS_CA_BUNDLE": bundle,
        "HTTPLIB2_CA_CERTS": bundle,
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": bundle,
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": bundle,
        **login(DEFAULT, layout.home),
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CONFIG": str(layout.home / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{layout.stacks}",
        "PULUMI_CONFIG_PASSPHRASE": "rehearsal",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # As in docs/reference/stacks.md for the layer `queue`: 6 MB of state, written 300 times.
        "PULUMI_DIY_BACKEND_GZIP": "true",
        # A missing plugin is an error that names it, not a download, which is impossible here.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # Hosts in here have no chips, and nothing leads to a registry that would have the wheels for them.
        "TPU_LOCK": "cpu",
        # The caches by their outer names: HOME is another one here.
        "TPU_CACHE": str(cache_dir()),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
    }
