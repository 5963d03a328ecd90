"""The script as a whole, its status and its runner, without a boot."""

from __future__ import annotations

import email
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infra.layers.tpu.startup as startup
from tests.infra.layers.tpu.boot.sourced import PARTS, SLEEP, bash, printed
from tests.served import Reply, serving


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    rendered = tmp_path / "boot.sh"
    rendered.write_text(startup.render())
    loader = tmp_path / "loader.sh"
    loader.write_text(startup.loader())
    files = [loader, *sorted(PARTS.glob("*.sh"))]
    assert {file.stem for file in files} == {"loader", *startup.PARTS}
    done = subprocess.run(["shellcheck", rendered, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_script_and_loader_are_the_same_bytes_for_every_node() -> None:
    script, loader = startup.render(), startup.loader()
    assert script == startup.render()
    assert script.startswith("#!/usr/bin/env bash\n")
    assert startup.script_sha256() == hashlib.sha256(script.encode()).hexdigest()
    assert len(loader.encode()) < 3500, "it is stored twice per node in Pulumi's state"
    assert f"  {startup.IN_BUNDLE}".replace(".", "\\.") in loader


def test_main_runs_the_stages_in_their_order() -> None:
    lines = (PARTS / "main.sh").read_text().splitlines()
    assert tuple(line.split()[1] for line in lines if line.startswith("run_stage ")) == startup.STAGES
    for stage in startup.STAGES:
        assert f"\nstage_{stage.replace('-', '_')}() {{\n" in (PARTS / f"{stage}.sh").read_text()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300).filter(lambda content: b"\0" not in content))
def test_json_string_is_json_for_any_bytes(content: bytes) -> None:
    stored = "".join(chr(b) if b in (9, 10) or 32 <= b < 127 else "?" for b in content.rstrip(b"\n"))
    assert json.loads(printed('json_string "$(cat)"', stdin=content)) == stored


def test_a_metadata_value_never_contains_the_body_of_an_error() -> None:
    """The server is busy, has a value, has none, and then gives no definite answer."""
    answers = iter([(503, b"busy\n"), (200, b"4\n4"), (404, b"not found"), *[(500, b"broken")] * 4])
    with serving(lambda _: Reply(*next(answers))) as address:
        output = printed(f"""
          METADATA=http://{address}
          value=$(metadata present); echo "$value"
          metadata absent || echo "absent: $?"
          metadata broken || echo "broken: $?"
        """)
    assert output.splitlines() == ["4", "4", "absent: 1", "broken: 2"]


@pytest.mark.parametrize(("free_mib", "full"), [(63, True), (64, False)])
def test_a_boot_needs_64_mib(free_mib: int, full: bool) -> None:
    done = bash(f"df() {{ printf 'Avail\\n  {free_mib}\\n'; }}; ! disk_is_full")
    assert (done.returncode != 0) == full
    assert ("the boot disk is full: 63 MiB of / are free" in done.stderr) == full


def test_a_status_is_json_with_the_tail_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    output = printed(f"""
      export TPU_NAME=tpu-lab WORKER_ID=3 WORKER_COUNT=4 TPU_BUNDLE=abc
      first=$(stage_json identity ok 1 S E 1234 /none)
      status_json failed bundle "$first" "$(stage_json bundle failed 2 S '' 7 {log})"
    """)
    status = json.loads(output)
    assert (status["node"], status["worker"], status["workers"]) == ("tpu-lab", 3, 4)
    first, second = status["stages"]
    assert (first["duration_s"], first["end"], first["log_tail"]) == (1.234, "E", "")
    assert (second["duration_s"], second["end"], second["attempt"]) == (0.007, None, 2)
    assert second["log_tail"].splitlines() == [f"line {number}" for number in range(80, 100)]


def test_an_upload_is_two_parts_the_second_of_which_is_the_status(tmp_path: Path) -> None:
    (tmp_path / "stage.log").write_text("\r\n--tpu-boot-status--\r\n")  # whatever a program prints
    body = printed(f"""
      RUN={tmp_path} INSTANCE_ID=4711
      status_json failed bundle "$(stage_json bundle failed 1 S E 7 $RUN/stage.log)" >$RUN/status.json
      upload_body failed bundle "$(why failed bundle)"
    """)
    kind = "Content-Type: multipart/related; boundary=tpu-boot-status\r\n\r\n"
    about, status = email.message_from_string(kind + body).get_payload()
    result = json.loads(about.get_payload())  # type: ignore[union-attr]
    assert result["metadata"] == {"state": "failed", "stage": "bundle", "instance": "4711"}
    assert result["contentType"] == status.get_content_type() == "application/json"  # type: ignore[union-attr]
    assert "--tpu-boot-status--" in json.loads(status.get_payload())["stages"][0]["log_tail"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("variables", "code", "name", "message"), [
    ("TPU_NAME=n CHECKPOINT_BUCKET=b WORKER_ID=3", 200, "boot%2Fn%2Fworker-3.json", ""),
    # A host without a number must not overwrite the status of a worker.
    ("TPU_NAME=n CHECKPOINT_BUCKET=b INSTANCE_ID=47", 200, "boot%2Fn%2Fworker-unknown-47.json", ""),
    ("TPU_NAME=n CHECKPOINT_BUCKET=b WORKER_ID=3", 503, "boot%2Fn%2Fworker-3.json",
     "status not uploaded to gs://b/boot/n/worker-3.json (HTTP 503); the next change tries again"),
    ("TPU_NAME=n", 200, "", "status not uploaded: bucket and slice aren't known"),
])  # fmt: skip
def test_a_status_is_uploaded_by_the_workers_number(
    variables: str, code: int, name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "status.json").write_text("{}\n")
    done = bash(f"""
      RUN={tmp_path} {variables} FINISHED=(one)
      authorize() {{ :; }}
      curl() {{ echo "${{@: -1}}" >$RUN/url; printf {code}; }}
      upload_status booting identity ""
    """)
    assert done.returncode == 0
    url = tmp_path / "url"
    assert (url.read_text().strip().rpartition("name=")[2] if url.exists() else "") == name
    assert message in done.stderr
    assert bool(done.stderr) == bool(message)


def test_a_guest_attribute_is_written_each_15_s_and_at_every_outcome(tmp_path: Path) -> None:
    output = printed(f"""
      unset SECONDS; RUN={tmp_path} SECONDS=100  # no clock any more
      curl() {{
        [[ $* =~ \\"state\\":\\ \\"([a-z-]+) ]]
        echo "$SECONDS ${{BASH_REMATCH[1]}}" >&3
        printf 200
      }}
      exec 3>&1
      for at in 100 101 114 115 129; do SECONDS=$at; guest_attribute booting bundle ""; done
      guest_attribute failed bundle ""
      guest_attribute rerun-failed bundle ""
      guest_attribute ready launch ""
    """)
    assert output.splitlines() == [
        "100 booting",
        "115 booting",
        "129 failed",
        "129 rerun-failed",
        "129 ready",
    ]


def test_a_file_is_replaced_only_when_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    assert printed(f"write_file {file} <<<one") == "changed\n"
    before = file.stat().st_ino
    assert printed(f"write_file {file} <<<one") == ""
    assert file.stat().st_ino == before
    assert printed(f"write_file {file} <<<two") == "changed\n"
    assert file.read_text() == "two\n"


def runs(folder: Path, code: str, fine: bool = True) -> list[str]:
    """Run stages; return the recorded states, each with stage and reason."""
    done = bash(f"""
      RUN={folder} LOG_WRITER=$$
      exec 7>/dev/null 3>&1
      record() {{ echo "$1 $2 $(why "$1" "$2")" | tee --append $RUN/records >&3; }}
      disk_is_full() {{ return 1; }}
      send_failure() {{ :; }}
      flush_log() {{ :; }}
      {code}
    """)
    assert (done.returncode == 0) == fine, done.stderr
    return [line.rstrip() for line in done.stdout.splitlines() if not line.startswith("tpu-boot: ")]


def test_a_running_stage_is_recorded_again_with_the_reason_of_its_wait(tmp_path: Path) -> None:
    states = runs(tmp_path, """
      RECORD_EACH_S=0.1
      stage_identity() {
        log "waiting for a number"
        until (($(wc -l <$RUN/records) >= 4)); do sleep 0.05; done
        log "it is 3"
      }
      stage_bundle() { kill -KILL $BASHPID; sleep 5; }
      run_stage identity 0
      (run_stage bundle 0) || true
    """)  # fmt: skip
    assert states[0] == "booting identity"
    assert states.count("booting identity waiting for a number") >= 2
    assert states[-2:] == ["booting bundle", "failed bundle"]


def test_a_stage_that_ends_during_a_timeout_has_not_failed(tmp_path: Path) -> None:
    """The timeout falls between the text of its result and the end of that line."""
    assert runs(tmp_path, """
      read() {
        [[ -v cut ]] || { cut=yes; builtin read -r -N 1 -u 8 "${!#}"; return 142; }
        builtin read "$@"
      }
      stage_identity() { :; }
      run_stage identity 0
      echo "cut: $cut"
    """) == ["booting identity", "booting identity", "cut: yes"]  # fmt: skip


@pytest.mark.parametrize(("patience_s", "states"), [
    (420, ["booting bundle", *["booting bundle no token"] * 2]),
    (0, ["booting bundle", "failed bundle no token"]),
])  # fmt: skip
def test_a_stage_is_retried_within_its_time(patience_s: int, states: list[str], tmp_path: Path) -> None:
    code = f"""
      {SLEEP}
      stage_bundle() {{ echo x >>$RUN/tries; (($(wc -l <$RUN/tries) == 3)) || try_again "no token"; }}
      run_stage bundle {patience_s}
    """
    assert runs(tmp_path, code, fine=patience_s > 0) == states


def test_a_stage_that_fails_on_a_full_disk_is_not_retried_and_says_so(tmp_path: Path) -> None:
    states = runs(tmp_path, """
      disk_is_full() { log "error: the boot disk is full: 0 MiB"; }
      stage_bundle() { try_again "curl's status 23"; }
      run_stage bundle 420
    """, fine=False)  # fmt: skip
    assert states == ["booting bundle", "failed bundle the boot disk is full: 0 MiB"]


@pytest.mark.parametrize(
    ("state", "again"), [("booting", "rerunning"), ("failed", "rerun-failed"), ("ready", "ready")]
)
def test_a_run_after_the_boot_was_ready_has_states_of_its_own(tmp_path: Path, state: str, again: str) -> None:
    assert printed(f"RUN={tmp_path}; state_of {state}") == f"{state}\n"
    (tmp_path / "ready").touch()
    assert printed(f"RUN={tmp_path}; state_of {state}") == f"{again}\n"
