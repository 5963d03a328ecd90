"""A systemd unit that keeps a controller up: `python -m fleet unit dev`."""

import sys
from pathlib import Path

from infra.settings.sources import ROOT

_UNIT = """\
# {path}
# sudo useradd --system --create-home tpu-fleet, log in as it (gcloud auth application-default login, or the
# machine's own service account), put this where its name says, and:
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
# Whose nodes are ours; without it Pulumi would be asked, and named slices kept too.
Environment=TPU_STACK_ID={stack} PYTHONUNBUFFERED=1
ExecStart={python} -m fleet monitor {environment}
# A lease that another controller holds, or a bucket that doesn't answer: asked again.
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


def unit(environment: str, stack: str, root: Path = ROOT, python: str = sys.executable) -> str:
    """The unit's text for a checkout and an interpreter; `stack` is the id that the members carry."""
    name = f"tpu-fleet-{environment}.service"
    path = f"/etc/systemd/system/{name}"
    return _UNIT.format(path=path, name=name, environment=environment, stack=stack, root=root, python=python)
