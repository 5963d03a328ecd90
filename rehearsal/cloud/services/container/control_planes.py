"""Requests of the control planes of clusters, by the control socket.

Clusters, accounts of tokens, and permissions. None counts as a request of the world's people.
"""

from __future__ import annotations

from google_facts.scopes import EMAIL
from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.faults import Faults
from rehearsal.cloud.iam.iam import Iam, denied
from rehearsal.cloud.iam.oauth import account_id
from rehearsal.cloud.services.container import access, chips
from rehearsal.cloud.services.container.pools import resize, sizes
from rehearsal.cloud.services.container.pulls import Pulls

# Method of the fault rules that refuse machines to the autoscaler.
SCALE_UP = "container.autoscaler.scaleUp"


class Clusters:
    """The answers to the control planes' process."""

    def __init__(self, world: World, iam: Iam, faults: Faults) -> None:
        self._world, self._iam, self._faults = world, iam, faults
        self._lost: dict[str, JsonObject] = {}
        self._numbered: dict[str, str] = {}  # accounts, of which IAM knows the address all the same
        self._pulls = Pulls(world, iam)
        iam.permissions.update(access.permissions())

    async def clusters(self, body: JsonObject) -> JsonObject:
        """Clusters, each with its pools and how many nodes they have in each zone."""
        clusters = []
        for name, cluster in self._below("clusters", 6):
            pools = [
                {"body": pool, "sizes": sizes(self._world, full, pool), "lost": self._lost_of(full)}
                for full, pool in self._below("nodePools", 8)
                if full.startswith(f"{name}/")
            ]
            clusters.append({"name": name, "body": cluster, "pools": pools})
        return {"clusters": clusters, "rate": self._world.clock.rate}

    async def report(self, body: JsonObject) -> JsonObject:
        """Keep a control plane's `state` (starting, ready, failed), `message` and `nodes` by pool."""
        if self._world.control_planes is not None:
            keys = ("state", "message", "nodes")
            self._world.control_planes[body["name"]] = {key: body[key] for key in keys}
        return {}

    def reports(self) -> dict[str, JsonObject]:
        """Return the reports of all clusters."""
        return dict(self._world.control_planes or {})

    async def account(self, body: JsonObject) -> JsonObject:
        """Return the name of an access token's account; empty for an invalid one.

        It is the account's address, or its number where the token has no scope for that.
        """
        token = self._iam.find_token(body["token"])
        if token is None:
            return {"account": ""}
        if EMAIL in token.scopes:
            return {"account": token.principal}
        resource = f"projects/{self._world.project}/serviceAccounts/{token.principal}"
        number = str(self._world.directory.get(resource, {}).get("uniqueId") or account_id(token.principal))
        self._numbered[number] = token.principal
        return {"account": number}

    async def access(self, body: JsonObject) -> JsonObject:
        """Decide about a request: `allowed` by IAM, `denied`, or neither, if RBAC decides."""
        name, account = body["cluster"], str(body["account"])
        account = self._numbered.get(account, account)
        if not self._iam.allowed(account, access.CONNECT, name):
            reason = denied(account, access.CONNECT, name).message
            return {"allowed": False, "denied": True, "reason": reason}
        permission = access.permission(*(body[key] for key in ("group", "resource", "subresource", "verb")))
        if permission is None:
            return {"allowed": False, "denied": False, "reason": ""}
        allowed = self._iam.allowed(account, permission, name)
        reason = "" if allowed else f'requires one of ["{permission}"] permission(s).'
        return {"allowed": allowed, "denied": False, "reason": reason}

    async def scale(self, body: JsonObject) -> JsonObject:
        """Resize a pool in a zone, as the autoscaler does; ApiError by a fault rule."""
        if body["count"]:
            fault = self._faults.inject(SCALE_UP, "container.googleapis.com", body["pool"], "")
            if fault is not None and (error := fault.error or fault.operation_error):
                raise error
            pool = self._world.require(body["pool"])
            if chips.exceeded(self._world, body["pool"], pool, int(body["count"])):
                raise ApiError(429, "RESOURCE_EXHAUSTED", "GCE quota exceeded")
        resize(self._world, body["pool"], body["zone"], int(body["count"]))
        return {}

    async def pull(self, body: JsonObject) -> JsonObject:
        """Pull an image as a node of a pool does; `refused` has the error."""
        directory = self._world.directory
        cluster, pool = directory[body["cluster"]], directory[f"{body['cluster']}/nodePools/{body['pool']}"]
        return {"refused": self._pulls.refusal(body["image"], cluster, pool)}

    async def disk(self, body: JsonObject) -> JsonObject:
        """Return the file with a disk's content; empty where there is none."""
        return {"image": str(self._world.images.get(body["id"], ""))}

    async def lose(self, body: JsonObject) -> JsonObject:
        """Remove all nodes of a pool, with notice or without, for `for_s` virtual seconds."""
        pools = [full for full, _ in self._below("nodePools", 8) if full.rpartition("/")[2] == body["pool"]]
        if not pools:
            raise ApiError(404, "NOT_FOUND", f"The node pool '{body['pool']}' was not found")
        until = self._world.clock.now() + float(body["for_s"])
        for full in pools:
            self._lost[full] = {"notice": bool(body["notice"]), "until": until}
        return {}

    def _lost_of(self, full: str) -> str:
        """Return the end of a pool's missing nodes: `notice` or `power-loss`; empty if none are missing."""
        lost = self._lost.get(full)
        if lost is None or lost["until"] <= self._world.clock.now():
            self._lost.pop(full, None)
            return ""
        return "notice" if lost["notice"] else "power-loss"

    def _below(self, collection: str, parts: int) -> list[tuple[str, JsonObject]]:
        children = []
        for name, body in self._world.directory.items():
            words = name.split("/")
            if len(words) == parts and words[-2] == collection and words[4:5] == ["clusters"]:
                children.append((name, body))
        return children
