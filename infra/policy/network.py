"""Rules for networks."""

from collections.abc import Iterator

from infra.layers.network.names import IAP_RANGE
from infra.policy.rule import Resource, Rule, every, literal
from infra.settings.schema import Settings

_FIREWALL = ("gcp:compute/firewall:Firewall",)
_SUBNET = ("gcp:compute/subnetwork:Subnetwork",)
_NAT = ("gcp:compute/routerNat:RouterNat",)
_SSH = 22


def _open(resource: Resource, _: Settings) -> Iterator[str]:
    if resource.get("direction") != "EGRESS":
        for source in resource.inputs.get("sourceRanges") or ():
            if source in ("0.0.0.0/0", "::/0"):
                yield f"sourceRanges: {source}"


def _ssh(resource: Resource, _: Settings) -> Iterator[str]:
    sources = [*(resource.inputs.get("sourceRanges") or ())]
    if sources and sources != [IAP_RANGE] and any(map(_lets_ssh, resource.inputs.get("allows") or ())):
        yield f"sourceRanges: {', '.join(sources)}"


def _lets_ssh(allowed: dict[str, object]) -> bool:
    ports = allowed.get("ports")
    if allowed.get("protocol") not in ("tcp", "all", "6"):
        return False
    if not isinstance(ports, list) or not ports:
        return True
    bounds = (str(port).partition("-") for port in ports)
    return any(int(low) <= _SSH <= int(high or low) for low, _, high in bounds)


def _targeted(resource: Resource, _: Settings) -> Iterator[str]:
    if not (resource.inputs.get("targetTags") or resource.inputs.get("targetServiceAccounts")):
        yield "targetTags, targetServiceAccounts: nothing"
    if resource.get("direction") is None:
        yield "direction: nothing"


def _flow_logs(resource: Resource, _: Settings) -> Iterator[str]:
    if not (resource.get("logConfig.flowSampling") or 0) > 0:
        yield f"logConfig.flowSampling: {resource.get('logConfig.flowSampling') or 'nothing'}"


RULES = (
    Rule("N01", ("gcp:compute/network:Network",), "networks have no automatic subnets",
         "auto_create_subnetworks=False", "CKV2_GCP_18, CIS 3.1", literal("autoCreateSubnetworks", False)),
    Rule("N02", _SUBNET, "subnets have flow logs", "network:flowLogSampling above 0",
         "CKV_GCP_26, CIS 3.8", _flow_logs),
    Rule("N03", _SUBNET, "hosts without external addresses reach Google's APIs",
         "private_ip_google_access=True", "CKV_GCP_74", literal("privateIpGoogleAccess", True)),
    Rule("N04", _FIREWALL, "no ingress from the whole internet", "your own source ranges",
         "CKV_GCP_2, CKV_GCP_3, CIS 3.6, CIS 3.7", _open),
    Rule("N05", _FIREWALL, "SSH comes from Identity-Aware Proxy alone",
         f"network:sshSourceRanges: [{IAP_RANGE}]", "CIS 3.10", _ssh),
    Rule("N06", _FIREWALL, "firewall rules have a direction and targets",
         "target_tags and direction", "", _targeted),
    Rule("N07", _NAT, "Cloud NAT has automatic addresses, and logs",
         'nat_ip_allocate_option="AUTO_ONLY" and log_config', "",
         every(literal("natIpAllocateOption", "AUTO_ONLY"), literal("logConfig.enable", True))),
)  # fmt: skip
