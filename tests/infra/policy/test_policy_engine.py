"""The rules in real previews and updates: `pulumi` alone, without options."""

import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.infra.lab import SETTINGS, Lab

BROKEN = '  network:sshSourceRanges: ["203.0.113.0/24"]\n'
UNTIL = str(date.today() + timedelta(days=30))
EXCEPTION = f"""\
  policy:exceptions:
    - {{rule: N05, resource: "*-ssh", reason: the office's own VPN, until: "{UNTIL}"}}
"""


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def policy(lab: Lab, *words: str, fine: bool = True) -> str:
    """Return the output of `tpu policy` in the lab's project."""
    line = "import sys; from pathlib import Path; from cli.__main__ import main; "
    line += "sys.exit(main(['policy', *sys.argv[2:]], Path(sys.argv[1])))"
    return lab.run(sys.executable, "-c", line, str(lab.root), *words, fine=fine)


@pytest.mark.prove
@pytest.mark.slow
def test_a_broken_rule_ends_a_preview_and_an_update_and_is_found_in_stored_state(lab: Lab) -> None:
    lab.settings.write_text(SETTINGS + BROKEN)
    lab.infra("up", "dev", "storage", "--yes")
    assert "nothing is up of network in dev, so nothing was checked" in policy(
        lab, "dev", "network", fine=False
    )
    refused = lab.infra("up", "dev", "network", "--yes", fine=False)
    assert "N05: SSH comes from Identity-Aware Proxy alone" in refused
    assert "found sourceRanges: 203.0.113.0/24" in refused
    assert "tpu-training-ssh breaks the policy: N05" in refused
    assert "unhandled exception" not in refused
    assert "Traceback" not in refused
    assert "enforce.py" not in refused, "where the code refused it helps no one"
    assert not [item for item in lab.living() if item.endswith("-ssh")], (
        "nothing was created that breaks a rule"
    )

    lab.settings.write_text(SETTINGS + BROKEN + "  policy:enforcement: advisory\n")
    advised = lab.infra("up", "dev", "network", "--yes")
    assert "N05: SSH comes from Identity-Aware Proxy alone" in advised
    stored = policy(lab, "dev")
    assert "network: gcp:compute/firewall:Firewall tpu-training-ssh: found sourceRanges: 203" in stored
    assert "1 finding" in stored

    lab.settings.write_text(SETTINGS + BROKEN)
    assert "N05" in policy(lab, "dev", "network", fine=False)
    lab.settings.write_text(SETTINGS + BROKEN + EXCEPTION)
    allowed = policy(lab, "dev", "network")
    assert f"tpu-training-ssh, N05: allowed until {UNTIL}: the office's own VPN" in allowed
    assert "0 findings" in allowed
    assert "N05" not in lab.infra("up", "dev", "network", "--yes")

    lab.settings.write_text(SETTINGS + BROKEN + EXCEPTION.replace(UNTIL, "2025-12-31"))
    over = lab.infra("up", "dev", "network", "--yes", fine=False)
    assert "policy:exceptions[0].until = 2025-12-31: an exception ends on its date" in over
