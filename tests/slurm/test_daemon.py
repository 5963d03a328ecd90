"""The daemon's watch over its program, and the machine's programs and metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.layers.slurm import names
from slurm import __main__ as program
from slurm import daemon
from slurm.errors import SlurmError
from slurm.machine import Metadata, call
from tests.slurm.machine import Machine


class Server:
    """A metadata server with one attribute."""

    def __init__(self, value: str):
        self.value, self.changed, self.paths = value, threading.Event(), list[str]()

    @contextmanager
    def running(self) -> Iterator[Metadata]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                assert self.headers["Metadata-Flavor"] == "Google"
                if names.PROGRAM_KEY not in self.path:
                    return self.send_error(404)
                if "wait_for_change=true" in self.path:
                    server.changed.wait(20)
                self.send_response(200)
                self.send_header("ETag", f"{abs(hash(server.value)):x}")
                self.end_headers()
                self.wfile.write(server.value.encode())
                return None

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield Metadata(f"127.0.0.1:{http.server_port}")
        finally:
            http.shutdown()


def test_another_program_ends_the_daemon_and_the_start_up_script_fetches_it(tmp_path: Path) -> None:
    server, machine = Server("a.zip 1"), Machine(tmp_path)
    with server.running() as metadata:
        running = threading.Thread(target=daemon.run, args=(names.LOGIN, metadata, machine))
        running.start()
        while not any("wait_for_change" in path for path in server.paths):
            running.join(0.01)
        assert machine.lines == []
        server.value = "b.zip 2"
        server.changed.set()
        running.join()
    assert machine.lines == ["systemctl restart --no-block google-startup-scripts.service"]


def test_a_change_before_the_watch_begins_is_seen(tmp_path: Path) -> None:
    with Server("b.zip 2").running() as metadata:
        assert metadata.wait(names.PROGRAM_KEY, "a.zip 1", 60)


def test_a_metadata_server_that_doesnt_answer_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    metadata = Metadata("127.0.0.1:1")
    assert not metadata.wait(names.PROGRAM_KEY, "a", 0.01)
    assert "metadata slurm-program: " in caplog.text
    with pytest.raises(SlurmError, match="metadata slurm-program"):
        metadata.value(names.PROGRAM_KEY)


def test_a_key_that_the_machine_lacks_is_named() -> None:
    with (
        Server("x").running() as metadata,
        pytest.raises(SlurmError, match="metadata none: it has none\n    fix"),
    ):
        metadata.value("none")


@pytest.mark.parametrize(("line", "message"), [
    (["sh", "-c", "echo one >&2; echo two >&2; exit 3"], "sh -c .*: status 3: two"),
    (["/nonexistent"], "/nonexistent: No such file"), (["sleep", "9"], "sleep 9: no end after 0 s"),
])  # fmt: skip
def test_a_program_that_fails_is_told_by_its_last_line(line: list[str], message: str) -> None:
    with pytest.raises(SlurmError, match=message):
        call(line, timeout_s=0.3 if line[0] == "sleep" else 60.0)


def test_no_shell_reads_what_a_program_gets() -> None:
    assert call(["printf", "%s", "$(id); `id`"]) == "$(id); `id`"
    assert call(["cat"], text="given") == "given"


@pytest.mark.parametrize("words", [[], ["boot"], ["boot", "compute"], ["dance", "login"]])
def test_the_program_is_used_with_a_role(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(words) == 2
    assert "usage: python -m slurm boot|keep|logs controller|login" in capsys.readouterr().err


def test_a_boot_that_fails_is_tried_again_by_the_start_up_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    assert program.main(["boot", "login"]) == program.TRY_AGAIN == 75
    error = capsys.readouterr().err
    assert error.startswith("error: metadata slurm-environment: ")
    assert "Traceback" not in error
