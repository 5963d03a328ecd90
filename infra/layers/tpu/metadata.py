"""Custom metadata of a node: the input of its boot script (docs/internals/architecture.md)."""

from typing import Any

from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.slices.nodes import Node
from infra.slices.settings import TpuSettings


def metadata(
    settings: Settings, node: Node, *, bucket: Any, steps_bucket: Any, data_disk: Any
) -> dict[str, Any]:
    """Return attributes by key: every process on the host can read them, so none is a secret.

    Names of buckets and of the disk (None without a disk) may be outputs of other stacks.
    """
    attributes = {
        "startup-script": startup.loader(),
        "tpu-slice": node.name,
        "tpu-slice-name": node.slice,
        "tpu-zone": node.zone,
        "tpu-workers": str(node.kind.hosts),
        "tpu-bucket": bucket,
        "tpu-steps-bucket": steps_bucket,
        "tpu-bundle": node.bundle,  # None only in a preview: an update refuses to continue
        "tpu-data-disk": data_disk,
        "tpu-run": node.run,
        "tpu-image": node.image,
        "tpu-variables": "\n".join(f"{name}={value}" for name, value in node.variables.items()) or None,
        "tpu-checkpoint-folder": node.checkpoint_folder,
        "tpu-member": None if node.member is None else str(node.member),
        "tpu-job": node.slice if node.together else None,
        "tpu-slices": ",".join(node.together) or None,
        "tpu-metadata-timeout-s": str(settings[TpuSettings].metadata_timeout_s),
        "tpu-barrier-timeout-s": str(settings[TpuSettings].barrier_timeout_s),
        "enable-guest-attributes": "TRUE",
        "enable-oslogin": "TRUE" if settings[TpuSettings].os_login else "FALSE",
        "block-project-ssh-keys": "TRUE",
        "serial-port-enable": "FALSE",
    }
    return {key: value for key, value in attributes.items() if value is not None}
