"""What tells one stack's nodes from those of another stack with the same settings."""

import pulumi
import pulumi_gcp as gcp

MARK_TYPE = "tpu:tpu:StackMark"


class StackMark(pulumi.ComponentResource):
    """An object in the controller's bucket that Pulumi names; `id` is the suffix that it gave the name.

    Two people with a backend each have two of them, and neither takes the other's nodes for its own. It
    stands as long as the stack does, whatever slices are listed: by another id its nodes aren't ours.
    """

    id: pulumi.Output[str]

    def __init__(self, environment: str, bucket: str, opts: pulumi.ResourceOptions | None = None):
        super().__init__(MARK_TYPE, "stack", None, opts)
        mark = gcp.storage.BucketObject(
            "stack",
            bucket=bucket,
            content=f"The fleets of {environment} are marked by this object's name.\n",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.id = mark.name.apply(lambda name: str(name).rpartition("-")[2])
        self.register_outputs({"id": self.id})
