"""The rendered script, without a boot."""

from __future__ import annotations

import email
import hashlib
import http.server
import json
import subprocess
import threading
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infra.layers.tpu.startup as startup
from tests.limits import HANG_S

PARTS = Path(str(resources.files(startup) / "parts"))


def bash(code: str, *, parts: tuple[str, ...] = ("prelude", "status", "runner"), stdin: bytes = b"") -> bytes:
    """Run code after the given parts of the script; return what it printed."""
    script = "\n".join([*((PARTS / f"{part}.sh").read_text() for part in parts), code])
    done = subprocess.run(
        ["bash", "-c", script], input=stdin, capture_output=True, check=False, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    rendered = tmp_path / "boot.sh"
    rendered.write_text(startup.render())
    loader = tmp_path / "loader.sh"
    loader.write_text(startup.loader())
    files = [loader, *sorted(PARTS.glob("*.sh"))]
    assert {file.stem for file in files} == {"loader", *startup.PARTS}
    done = subprocess.run(["shellcheck", rendered, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_bytes_are_always_the_same() -> None:
    script = startup.render()
    assert script == startup.render()
    assert script.startswith("#!/usr/bin/env bash\n")
    assert startup.script_sha256() == hashlib.sha256(script.encode()).hexdigest()


def test_the_loader_is_small_the_same_for_all_and_names_nothing_of_a_node() -> None:
    loader = startup.loader()
    assert len(loader.encode()) < 3500, "it stands twice a node in Pulumi's state"
    assert f"  {startup.IN_BUNDLE}".replace(".", "\\.") in loader


def test_main_runs_the_stages_in_their_order() -> None:
    lines = (PARTS / "main.sh").read_text().splitlines()
    assert tuple(line.split()[1] for line in lines if line.startswith("run_stage ")) == startup.STAGES
    for stage in startup.STAGES:
        assert f"\nstage_{stage.replace('-', '_')}() {{\n" in (PARTS / f"{stage}.sh").read_text()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300).filter(lambda content: b"\0" not in content))
def test_json_string_is_json_whatever_it_is_given(content: bytes) -> None:
    printed = bash('json_string "$(cat)"', stdin=content)
    stored = "".join(chr(b) if b in (9, 10) or 32 <= b < 127 else "?" for b in content.rstrip(b"\n"))
    assert json.loads(printed) == stored


def test_a_metadata_value_is_the_answer_and_never_what_an_error_said() -> None:
    """The server is busy, has a value, has none, and then gives no answer that says either."""
    answers = iter([(503, b"busy\n"), (200, b"4\n4"), (404, b"not found"), *[(500, b"broken")] * 4])

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            status, body = next(answers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        code = f"""
          METADATA=http://127.0.0.1:{server.server_address[1]}
          value=$(metadata there); echo "$value"
          metadata absent || echo "absent: $?"
          metadata broken || echo "broken: $?"
        """
        printed = bash(code)
        server.shutdown()
    assert printed.decode().splitlines() == ["4", "4", "absent: 1", "broken: 2"]


def test_a_status_is_json_with_the_tail_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    code = f"""
      export TPU_NAME=tpu-lab WORKER_ID=3 WORKER_COUNT=4 TPU_BUNDLE=abc
      one=$(stage_json identity ok 1 S E 1234 /none)
      status_json failed bundle "$one" "$(stage_json bundle failed 2 S '' 7 {log})"
    """
    status = json.loads(bash(code))
    assert (status["node"], status["worker"], status["workers"]) == ("tpu-lab", 3, 4)
    first, second = status["stages"]
    assert (first["duration_s"], first["end"], first["log_tail"]) == (1.234, "E", "")
    assert (second["duration_s"], second["end"], second["attempt"]) == (0.007, None, 2)
    assert second["log_tail"].splitlines() == [f"line {number}" for number in range(80, 100)]


def test_an_upload_is_two_parts_the_second_of_which_is_the_status(tmp_path: Path) -> None:
    (tmp_path / "stage.log").write_text("\r\n--tpu-boot-status--\r\n")  # whatever a program prints
    code = f"""
      RUN={tmp_path} INSTANCE_ID=4711
      status_json failed bundle "$(stage_json bundle failed 1 S E 7 $RUN/stage.log)" >$RUN/status.json
      upload_body failed bundle "$(why failed bundle)"
    """
    kind = b"Content-Type: multipart/related; boundary=tpu-boot-status\r\n\r\n"
    about, status = email.message_from_bytes(kind + bash(code)).get_payload()
    result = json.loads(about.get_payload())
    assert result["metadata"] == {"state": "failed", "stage": "bundle", "instance": "4711"}
    assert result["contentType"] == status.get_content_type() == "application/json"
    assert "--tpu-boot-status--" in json.loads(status.get_payload())["stages"][0]["log_tail"]


def test_a_file_is_replaced_only_when_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    assert bash(f"write_file {file} <<<one") == b"changed\n"
    before = file.stat().st_ino
    assert bash(f"write_file {file} <<<one") == b""
    assert file.stat().st_ino == before
    assert bash(f"write_file {file} <<<two") == b"changed\n"
    assert file.read_text() == "two\n"


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        ("", False),
        ("unknown:unknown:10.0.0.2", False),
        ("unknown:unknown:10.0.0.2,unknown:unknown:", False),
        ("unknown:unknown:,unknown:unknown:10.0.0.3", False),
        ("unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3", True),
        ("unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3,unknown:unknown:10.0.0.4", True),  # refused later
    ],
)
def test_a_slice_is_whole_when_each_worker_has_an_address(value: str, whole: bool) -> None:
    printed = bash(f"VALUE={value}; if of_all 2; then echo whole; fi", parts=("prelude", "identity"))
    assert printed == (b"whole\n" if whole else b"")


def test_a_stage_that_goes_on_is_told_again_with_what_it_waits_for(tmp_path: Path) -> None:
    code = f"""
      RUN={tmp_path} RECORD_EACH_S=1
      exec 7>&1
      record() {{ printf '%s %s %s\\n' "$1" "$2" "$(why "$1" "$2")"; }}
      stage_identity() {{ log "waiting for a number"; sleep 2.5; log "it is 3"; }}
      stage_bundle() {{ kill -KILL $BASHPID; sleep 5; }}
      run_stage identity 0
      (run_stage bundle 0) || true
    """
    reported = [
        line.split(maxsplit=2) for line in bash(code).decode().splitlines() if not line.startswith("tpu")
    ]
    assert reported[:3] == [
        ["booting", "identity"],
        ["booting", "identity", "waiting for a number"],
        ["booting", "identity", "waiting for a number"],
    ]
    assert reported[3:] == [["booting", "bundle"], ["failed", "bundle"]]


def test_a_stage_that_ends_as_it_is_told_of_again_has_not_failed(tmp_path: Path) -> None:
    """The timeout falls between the text of its result and the end of that line."""
    code = f"""
      RUN={tmp_path}
      exec 7>&1
      record() {{ echo "$1"; }}
      read() {{
        [[ -v cut ]] || {{ cut=yes; builtin read -r -N 1 -u 8 "${{!#}}"; return 142; }}
        builtin read "$@"
      }}
      stage_identity() {{ :; }}
      run_stage identity 0
      echo "cut: $cut"
    """
    reported = [line for line in bash(code).decode().splitlines() if not line.startswith("tpu")]
    assert reported == ["booting", "booting", "cut: yes"]


@pytest.mark.parametrize(
    ("state", "again"), [("booting", "rerunning"), ("failed", "rerun-failed"), ("ready", "ready")]
)
def test_a_run_after_the_boot_was_ready_has_states_of_its_own(tmp_path: Path, state: str, again: str) -> None:
    assert bash(f"RUN={tmp_path}; state_of {state}").decode() == f"{state}\n"
    (tmp_path / "ready").touch()
    assert bash(f"RUN={tmp_path}; state_of {state}").decode() == f"{again}\n"
