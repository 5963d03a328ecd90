"""The custom metadata of a node: all that its boot script has to know (docs/architecture.md)."""

from infra.nodes import Node
from infra.settings import Settings
from infra.tpu import startup


def metadata(
    settings: Settings, node: Node, *, bucket: str, steps_bucket: str, data_disk_id: str | None
) -> dict[str, str]:
    """Attributes by key, in plain text: every process on the host can read them, so none is a secret."""
    attributes = {
        "startup-script": startup.loader(),
        "tpu-slice": node.name,
        "tpu-slice-name": node.slice,
        "tpu-zone": node.zone,
        "tpu-workers": str(node.kind.hosts),
        "tpu-bucket": bucket,
        "tpu-steps-bucket": steps_bucket,
        "tpu-bundle": settings.tpu.bundle,  # None only in a preview: an update refuses to go on
        "tpu-data-disk": data_disk_id.rpartition("/")[2] if data_disk_id else None,
        "tpu-run": node.run,
        "tpu-member": None if node.member is None else str(node.member),
        "tpu-job": node.slice if node.together else None,
        "tpu-slices": ",".join(node.together) or None,
        "tpu-metadata-timeout-s": str(settings.tpu.metadata_timeout_s),
        "tpu-barrier-timeout-s": str(settings.tpu.barrier_timeout_s),
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "TRUE" if settings.tpu.os_login else "FALSE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
    }
    return {key: value for key, value in attributes.items() if value is not None}
