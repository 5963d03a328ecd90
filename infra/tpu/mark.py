"""What tells one stack from another one with the same settings."""

import pulumi
import pulumi_gcp as gcp


class StackMark(pulumi.ComponentResource):
    """An object in the controller's bucket, of whose name Pulumi makes the end: the stack's id.

    Two people with a backend each have two of them, and neither takes the other's nodes for its own.
    """

    id_: pulumi.Output[str]

    def __init__(self, environment: str, bucket: str, opts: pulumi.ResourceOptions | None = None):
        super().__init__("tpu:tpu:StackMark", "stack", None, opts)
        mark = gcp.storage.BucketObject(
            "stack",
            bucket=bucket,
            content=f"Nodes of this stack, {environment}, carry the end of this object's name as a label.\n",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.id_ = mark.name.apply(lambda name: str(name).rpartition("-")[2])
        self.register_outputs({"id": self.id_})
