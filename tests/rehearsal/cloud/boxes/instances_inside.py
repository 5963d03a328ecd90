"""Part of the tests inside private namespaces: instances of an emulated cloud, observations as JSON.

python tests/rehearsal/cloud/boxes/instances_inside.py FOLDER IMAGE
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp

from rehearsal import authority
from rehearsal.cloud.cloud import Cloud
from rehearsal.cloud.config import CloudConfig
from rehearsal.cloud.core.world import NO_LAGS
from rehearsal.hosts.bootdisk import Access
from rehearsal.hosts.machine import NspawnHosts
from rehearsal.hosts.network import IAP_ADDRESS, Network
from rehearsal.world import names
from tests.limits import HANG_S

PROJECT, OWNER = "wire-test", "owner@example.com"
P, ZONE, REGION = f"projects/{PROJECT}", "us-east5-b", "us-east5"
ACCOUNT = f"slurm-ctl@{PROJECT}.iam.gserviceaccount.com"
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"
COMPUTE = f"compute.googleapis.com/compute/v1/{P}"
SUBNET = f"{P}/regions/{REGION}/subnetworks/net"
APIS = ("compute", "iam", "secretmanager", "storage", "tpu")
SERVER = "10.128.0.5"

# What a controller does: a disk of its own, files for others, and Google's APIs as its service account.
STARTUP = r"""#!/bin/bash
disk=/dev/disk/by-id/google-state
blkid $disk || mkfs.ext4 -q $disk
mkdir -p /var/lib/state /srv/shared && mount $disk /var/lib/state
cat /proc/sys/kernel/random/boot_id >>/var/lib/state/boots
md=http://metadata.google.internal/computeMetadata/v1/instance
meta() { curl -sf -H 'Metadata-Flavor: Google' "$@"; }
token=$(meta $md/service-accounts/default/token | sed 's/.*"access_token": "\([^"]*\)".*/\1/')
api() { curl -s -o /var/lib/state/$1 -w '%{http_code}' -H "Authorization: Bearer $token" "https://$2"; }
v1=secretmanager.googleapis.com/v1/projects/wire-test/secrets
{
  echo secret $(api secret $v1/munge/versions/latest:access)
  echo other $(api other $v1/other/versions/latest:access)
  echo object $(api object 'storage.googleapis.com/storage/v1/b/wire-bucket/o/program?alt=media')
  echo nodes $(api nodes tpu.googleapis.com/v2/projects/wire-test/locations/us-east5-b/nodes)
  for key in name id zone machine-type attributes/slurm-role service-accounts/default/scopes; do
    echo $key $(meta $md/$key)
  done
} >/var/lib/state/seen
meta -X PUT --data ready $md/guest-attributes/slurm/state
printf '/srv/shared 10.128.0.0/20(rw,no_root_squash)\n/home 10.128.0.0/20(ro)\n' >/etc/exports
systemctl start nfs-server
"""


class Stage:
    """A cloud with machines, and a person who asks it."""

    def __init__(self, folder: Path, image: Path) -> None:
        (folder / "hosts").write_text(names.hosts_file())
        self.key = folder / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        tls = authority.issue(folder / "tls", names.CERTIFICATE_NAMES, [names.FRONT_DOOR])
        self.network = Network((names.FRONT_DOOR, names.METADATA))
        self.network.open()
        access = Access(folder / "hosts", tls.ca, tls.bundle, self.key.with_suffix(".pub"))
        self.hosts = NspawnHosts(folder / "machines", image, access, self.network)
        config = CloudConfig(
            PROJECT, folder / "cloud", folder / "control", OWNER, "1//refresh",
            front_door=f"{names.FRONT_DOOR}:443", metadata=f"{names.METADATA}:80", clock_rate=1000.0,
            lags=NO_LAGS, certificate=tls.certificate, key=tls.key, ca_certificate=tls.ca, zones=(ZONE,),
            enabled_apis=tuple(f"{api}.googleapis.com" for api in APIS),
        )  # fmt: skip
        self.cloud = Cloud(config, self.hosts, firewall=self.network.firewall)

    async def request(self, method: str, url: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        host, _, path = url.partition("/")
        headers = {"Host": host, "Authorization": f"Bearer {self.cloud.iam.mint(OWNER).value}"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"https://{names.FRONT_DOOR}/{path}", json=body, headers=headers, ssl=False, **more
            ) as response,
        ):
            return response.status, await response.json()

    async def compute(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to Compute Engine and wait for its operation."""
        status, answer = await self.request(method, f"{COMPUTE}/{path}", body)
        assert status == 200, (path, answer)
        if answer.get("kind") != "compute#operation":
            return answer
        return await self.cloud.operations.wait(
            answer["selfLink"].removeprefix("https://www.googleapis.com/compute/v1/"), HANG_S
        )

    async def do(self, method: str, url: str, body: Any = None, **more: Any) -> Any:
        status, answer = await self.request(method, url, body, **more)
        assert status == 200, (url, answer)
        return answer

    async def grant(self, url: str, role: str, *, method: str = "POST") -> None:
        policy = {"bindings": [{"role": role, "members": [f"serviceAccount:{ACCOUNT}"]}]}
        await self.do(method, url, {"policy": policy} if method == "POST" else policy)

    async def furnish(self) -> None:
        await self.compute("POST", "global/networks", {"name": "net", "autoCreateSubnetworks": False})
        subnet = {"name": "net", "network": f"{P}/global/networks/net", "ipCidrRange": "10.128.0.0/20"}
        await self.compute("POST", f"regions/{REGION}/subnetworks", {**subnet, "privateIpGoogleAccess": True})
        await self.allow("ssh", "22", {"sourceRanges": ["35.235.240.0/20"]})
        await self.do("POST", f"iam.googleapis.com/v1/{P}/serviceAccounts", {"accountId": "slurm-ctl"})
        secrets = f"secretmanager.googleapis.com/v1/{P}/secrets"
        for name in ("munge", "other"):
            await self.do("POST", f"{secrets}?secretId={name}", {"replication": {"automatic": {}}})
            await self.do("POST", f"{secrets}/{name}:addVersion", {"payload": {"data": "a2V5"}})
        await self.grant(f"{secrets}/munge:setIamPolicy", "roles/secretmanager.secretAccessor")
        storage = "storage.googleapis.com/storage/v1/b"
        bucket = {
            "name": "wire-bucket",
            "location": "US",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
        }
        await self.do("POST", f"{storage}?project={PROJECT}", bucket)
        upload = "storage.googleapis.com/upload/storage/v1/b/wire-bucket/o?uploadType=media&name=program"
        await self.do("POST", upload, "a program")
        await self.grant(f"{storage}/wire-bucket/iam", "roles/storage.objectViewer", method="PUT")
        await self.compute(
            "POST",
            f"zones/{ZONE}/disks",
            {"name": "state", "sizeGb": "20", "type": f"{P}/zones/{ZONE}/diskTypes/hyperdisk-balanced"},
        )
        address = {"name": "controller", "addressType": "INTERNAL", "address": SERVER, "subnetwork": SUBNET}
        await self.compute("POST", f"regions/{REGION}/addresses", address)

    async def allow(self, name: str, port: str, source: dict[str, list[str]]) -> None:
        rule = {"name": name, "network": f"{P}/global/networks/net", **source}
        await self.compute(
            "POST", "global/firewalls", {**rule, "allowed": [{"IPProtocol": "tcp", "ports": [port]}]}
        )

    async def insert(self, name: str, metadata: dict[str, str], **more: Any) -> Any:
        card = {"subnetwork": SUBNET, **({"networkIP": SERVER} if name == "controller" else {})}
        boot = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": DEBIAN}}
        state = {"source": f"{P}/zones/{ZONE}/disks/state", "deviceName": "state"}
        body = {
            "name": name,
            "machineType": f"zones/{ZONE}/machineTypes/n2-standard-4",
            "disks": [boot, *([state] if name == "controller" else [])],
            "networkInterfaces": [card],
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "serviceAccounts": [
                {"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
            ],
            "tags": {"items": [name]},
            **more,
        }
        done = await self.compute("POST", f"zones/{ZONE}/instances", body)
        assert "error" not in done, done
        async with asyncio.timeout(HANG_S):
            await self.hosts.wait_booted(name)

    async def controller(self) -> None:
        metadata = {"startup-script": STARTUP, "slurm-role": "controller", "enable-guest-attributes": "TRUE"}
        await self.insert("controller", metadata)

    async def get(self, name: str) -> Any:
        return await self.compute("GET", f"zones/{ZONE}/instances/{name}")

    async def act(self, name: str, verb: str) -> Any:
        return await self.compute("POST", f"zones/{ZONE}/instances/{name}/{verb}")

    async def ssh(self, host: str, command: str, login: str = "engineer") -> str:
        (address,) = [item["address"] for item in self.cloud.instances.status() if item["name"] == host]
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        options += ["ConnectTimeout=5", f"BindAddress={IAP_ADDRESS}"]
        flags = [word for option in options for word in ("-o", option)]
        process = await asyncio.create_subprocess_exec(
            *("ssh", *flags, "-i", self.key, f"{login}@{address}", command),
            stdin=subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(HANG_S):
            output, _ = await process.communicate()
        return output.decode().strip()

    async def until(self, host: str, command: str, wanted: str) -> None:
        async with asyncio.timeout(HANG_S):
            while await self.ssh(host, command) != wanted:
                await asyncio.sleep(0.1)


async def scenario(stage: Stage) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    await stage.hosts.open()
    await stage.cloud.start()
    await stage.furnish()
    await stage.controller()
    seen["status"] = (await stage.get("controller"))["status"]
    seen["by the script"] = await stage.ssh("controller", "cat /var/lib/state/seen")
    seen["secret"] = await stage.ssh("controller", "cat /var/lib/state/secret")
    seen["object"] = await stage.ssh("controller", "cat /var/lib/state/object")
    path = "zones/us-east5-b/instances/controller/getGuestAttributes?queryPath=slurm/"
    seen["guest attributes"] = (await stage.compute("GET", path))["queryValue"]["items"]
    # Metadata that change in place are told to who waits for them.
    role = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/slurm-role"
    look = "curl -s -H Metadata-Flavor:Google"
    etag = await stage.ssh(
        "controller", f"{look} -o /dev/null -D - {role} | sed -n 's/^etag: //Ip' | tr -d '\\r'"
    )
    wait = f"{look} '{role}?wait_for_change=true&last_etag={etag}'"
    waiting = asyncio.create_task(stage.ssh("controller", wait))
    body = (await stage.get("controller"))["metadata"]
    items = [i if i["key"] != "slurm-role" else {**i, "value": "changed"} for i in body["items"]]
    changed = {"fingerprint": body["fingerprint"], "items": items}
    await stage.compute("POST", f"zones/{ZONE}/instances/controller/setMetadata", changed)
    seen["told"] = await waiting

    await stage.insert("login", {"startup-script": "#!/bin/bash\nmkdir -p /shared /homes\n"})
    mount = f"sudo mount -t nfs -o hard,retry=0 {SERVER}:/srv/shared /shared"
    seen["mount before the rule"] = await stage.ssh("login", mount)
    seen["dropped"] = [
        (d["source"], d["destination"], d["port"])
        for d in await asyncio.to_thread(stage.network.firewall.dropped)
        if d["port"] == 2049
    ]
    await stage.allow("nfs", "2049", {"sourceTags": ["login"], "targetTags": ["controller"]})
    await asyncio.sleep(1)
    line = f"{SERVER}:/srv/shared /shared nfs hard,_netdev 0 0"
    fstab = f"echo '{line}' | sudo tee -a /etc/fstab && sudo mount -a; mountpoint /shared"
    seen["mount"] = await stage.ssh("login", fstab)
    seen["mount of another path"] = await stage.ssh("login", f"sudo mount -t nfs {SERVER}:/etc /homes")
    seen["read only"] = await stage.ssh(
        "login", f"sudo mount -t nfs {SERVER}:/home /homes && ls /homes && touch /homes/engineer/x"
    )
    await stage.ssh("login", "sudo umount /homes")
    seen["written by one"] = await stage.ssh("login", "echo first > /shared/file && echo done", "researcher")
    append = "cat /srv/shared/file && echo second | sudo tee -a /srv/shared/file"
    seen["read by another"] = await stage.ssh("controller", append)
    seen["read back"] = await stage.ssh("login", "cat /shared/file")
    seen["sudo of the second"] = await stage.ssh("login", "sudo -n true", "researcher")
    seen["copy"] = await stage.ssh(
        "login",
        "head -c 20M /dev/urandom > /tmp/f && cp /tmp/f /shared/f && cmp /tmp/f /shared/f && echo same",
    )

    # Power.
    await stage.cloud.machines.pull("controller")
    seen["after the pull"] = (await stage.get("controller"))["status"]
    async with asyncio.timeout(HANG_S):
        while (await stage.get("controller"))["status"] != "RUNNING":
            await asyncio.sleep(0.1)
        await stage.hosts.wait_booted("controller")
    seen["boots after the pull"] = await stage.ssh("controller", "wc -l < /var/lib/state/boots")
    await stage.until("login", "cat /shared/file 2>&1 | head -1", "first")
    seen["mounted again"] = await stage.ssh("login", "cat /shared/file")
    await stage.act("controller", "stop")
    seen["stopped"] = [(await stage.get("controller"))["status"], stage.hosts.running("controller")]
    await stage.act("controller", "start")
    async with asyncio.timeout(HANG_S):
        await stage.hosts.wait_booted("controller")
    seen["kept by stop"] = await stage.ssh("controller", "ls /srv/shared/file; wc -l < /var/lib/state/boots")
    await stage.act("controller", "reset")
    async with asyncio.timeout(HANG_S):
        await stage.hosts.wait_booted("controller")
    seen["boots after reset"] = await stage.ssh("controller", "wc -l < /var/lib/state/boots")

    # Another instance of the same name: a new boot disk, the old state.
    await stage.act("controller", "setDeletionProtection?deletionProtection=true")
    seen["protected"] = (await stage.request("DELETE", f"{COMPUTE}/zones/{ZONE}/instances/controller"))[0]
    await stage.act("controller", "setDeletionProtection?deletionProtection=false")
    await stage.compute("DELETE", f"zones/{ZONE}/instances/controller")
    seen["deleted"] = (await stage.request("GET", f"{COMPUTE}/zones/{ZONE}/instances/controller"))[0]
    await stage.controller()
    seen["kept by deletion"] = await stage.ssh("controller", "ls /srv/shared; wc -l < /var/lib/state/boots")
    await stage.act("login", "stop")
    await stage.compute("DELETE", f"zones/{ZONE}/instances/login")
    await stage.compute("DELETE", f"zones/{ZONE}/instances/controller")
    await stage.compute("DELETE", f"zones/{ZONE}/disks/state")
    seen["images left"] = [path.name for path in (stage.cloud.instances.folder).glob("*")]
    seen["mistakes"] = stage.cloud.world.mistakes
    await stage.cloud.close()
    await stage.hosts.close()
    return seen


def main() -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    stage = Stage(Path(sys.argv[1]), Path(sys.argv[2]))
    print(json.dumps(asyncio.run(scenario(stage))))


if __name__ == "__main__":
    main()
