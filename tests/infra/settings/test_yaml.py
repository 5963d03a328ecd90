"""The settings' file says to us what it says to Pulumi."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.engine.plan import empty_state
from infra.engine.settings import from_file
from infra.errors import SettingsError
from infra.layers.data.settings import DataSettings
from infra.settings.sources import ROOT, as_pulumi_hands_it_over
from infra.settings.yaml_file import load
from tests.infra.recording import BASE

SCALARS = re.split(
    r"\s{2,}",
    """yes  on  off  no  y  True  TRUE  false  16:40  1e3  1E3  1.5e3  1e+3  12e03  1e20  1e21  1e400  010
    007  08  0o10  0O10  -010  0x10  -0x10  0b11  0B1  1_000  1__0  1_000.5  0x_1  +5  -5  -0  .5  +.5  ._5
    .5_0  5.  1.0  0.0  0.1  123456789.5  123456789012345678901234567890  0777777777777777777777777  inf  nan
    Infinity  2026-11-22  2026-11-32  2001-1-1  'yes'  "1e3"  =  abc  a:b
    !!str 5  !!int "5\"""",
)


def test_every_scalar_is_what_pulumi_makes_of_it(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: tpu\nruntime: python\n")
    lines = [f"  tpu:s{i}: {item}\n  tpu:l{i}: [{item}, {{k: {item}}}]\n" for i, item in enumerate(SCALARS)]
    text = f"config:\n{''.join(lines)}"
    (tmp_path / "state").mkdir()
    variables = {"PULUMI_BACKEND_URL": f"file://{tmp_path / 'state'}", "PULUMI_CONFIG_PASSPHRASE": "x"}
    environment = {**os.environ, **variables, "PULUMI_SKIP_UPDATE_CHECK": "true"}

    def pulumi(*arguments: str) -> str:
        line = ["pulumi", "--non-interactive", "-C", str(tmp_path), *arguments]
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout

    pulumi("stack", "init", "dev")
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    of_pulumi = json.loads(pulumi("config", "--json", "-s", "dev"))
    own = as_pulumi_hands_it_over(load(text)["config"], "f")
    assert len(own) == 2 * len(SCALARS)
    for key, value in own.items():
        foreign = of_pulumi[key]["value"]
        same = json.loads(value) == json.loads(foreign) if key.startswith("tpu:l") else value == foreign
        assert same, (SCALARS[int(key[5:])], value, foreign)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("  storage:versioning: yes", "storage:versioning"),
        ("  data:sizeGib: 16:40", "data:sizeGib"),
        ("confg: {}", "confg"),
        ("environment: [shared]", "environment"),
    ],
)
def test_what_pulumi_would_read_otherwise_or_skip_is_refused(tmp_path: Path, line: str, path: str) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(f"{yaml.safe_dump({'config': BASE})}{line}\n")
    with pytest.raises(SettingsError) as caught:
        from_file("dev", tmp_path)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_a_number_that_only_pulumi_knew_for_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(f"{yaml.safe_dump({'config': BASE})}  data:sizeGib: 1e3\n")
    assert from_file("dev", tmp_path)[DataSettings].size_gib == 1000


def test_a_preview_hands_the_settings_over_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    (tmp_path / "Pulumi.dev.yaml").write_text("config:\n  a:b: '1e3'\n  a:c: 1e3\n  a:d: yes\n")
    with empty_state("dev", ["tpu"], tmp_path) as pulumi:
        copied = load((pulumi.root / "Pulumi.dev.yaml").read_text())
    assert copied == {"config": {"a:b": "1e3", "a:c": 1000, "a:d": "yes"}}
