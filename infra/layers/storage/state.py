"""Pulumi's own state, for teams: a bucket, and a key for stack secrets.

docs/reference/stacks.md has the commands that move a state there.
"""

import pulumi
import pulumi_gcp as gcp

from infra.layers.storage.names import STATE_KEY
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings

ROTATION_PERIOD = f"{90 * 86400}s"


class StateKey(pulumi.ComponentResource):
    """A key ring with one key. Google never deletes either, so they are kept here, too."""

    key: gcp.kms.CryptoKey

    def __init__(self, settings: Settings, ring_name: str, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:storage:StateKey", ring_name, None, opts)
        stored = pulumi.ResourceOptions(parent=self, protect=True, retain_on_delete=True)
        ring = gcp.kms.KeyRing(
            ring_name, name=ring_name, location=settings[StorageSettings].location, opts=stored
        )
        self.key = gcp.kms.CryptoKey(
            STATE_KEY,
            name=STATE_KEY,
            key_ring=ring.id,
            purpose="ENCRYPT_DECRYPT",
            rotation_period=ROTATION_PERIOD,
            opts=stored,
        )
        self.register_outputs({})


class StateUsers(pulumi.ComponentResource):
    """Grants to read and write the state, and to use the key."""

    def __init__(
        self,
        settings: Settings,
        bucket: gcp.storage.Bucket | None,
        key: gcp.kms.CryptoKey | None,
        opts: pulumi.ResourceOptions | None = None,
    ):
        super().__init__("tpu:storage:StateUsers", "state-users", None, opts)
        for user in settings[StorageSettings].state_users:
            if bucket:
                gcp.storage.BucketIAMMember(
                    f"state-{user}",
                    bucket=bucket.name,
                    role="roles/storage.objectUser",
                    member=user,
                    opts=pulumi.ResourceOptions(parent=self),
                )
            if key:
                gcp.kms.CryptoKeyIAMMember(
                    f"state-key-{user}",
                    crypto_key_id=key.id,
                    role="roles/cloudkms.cryptoKeyEncrypterDecrypter",
                    member=user,
                    opts=pulumi.ResourceOptions(parent=self),
                )
        self.register_outputs({})
