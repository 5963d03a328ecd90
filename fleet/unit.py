"""Systemd unit of a controller: `tpu fleet unit dev`."""

import sys
from pathlib import Path

from infra.settings.sources import ROOT

_UNIT = """\
# {path}
# {login}
# sudo useradd --system --create-home tpu-fleet, write this file to the path above, and:
#   sudo systemctl daemon-reload && sudo systemctl enable --now {name}
[Unit]
Description=Fleet controller of {environment}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User=tpu-fleet
WorkingDirectory={root}
# Stack of the nodes; without it the controller needs Pulumi, and keeps named slices, too.
Environment=TPU_STACK_ID={stack} PYTHONUNBUFFERED=1
ExecStart={python} -m cli fleet monitor {environment}
# Retry while another controller holds the lease, or the bucket doesn't answer.
Restart=always
RestartSec=30
KillSignal=SIGTERM
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""

_LOGIN = """\
Its login is the account of the machine, a VM made with
#   --service-account={account} --scopes=cloud-platform
# or, elsewhere, impersonation by the user tpu-fleet:
#   gcloud auth application-default login --impersonate-service-account={account} --disable-quota-project"""
_NO_ACCOUNT = """\
Its login is that of the user tpu-fleet: gcloud auth application-default login. For an account of its own
# write storage:controllerAccountId (docs/reference/access.md) and bring the storage layer up."""


def unit(
    environment: str, stack: str, account: str = "", root: Path = ROOT, python: str = sys.executable
) -> str:
    """Return the unit's text for a checkout and an interpreter.

    Args:
        environment: the name in Pulumi.ENV.yaml.
        stack: id of the members' stack.
        account: email of the controller's service account; empty: none.
        root: the checkout.
        python: the interpreter.
    """
    name = f"tpu-fleet-{environment}.service"
    path = f"/etc/systemd/system/{name}"
    login = _LOGIN.format(account=account) if account else _NO_ACCOUNT
    return _UNIT.format(
        path=path, name=name, login=login, environment=environment, stack=stack, root=root, python=python
    )
