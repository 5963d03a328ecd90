"""Program of one stack: the storage and network layers, the slices, and a bucket of your own beside them."""

import pulumi
import pulumi_gcp as gcp

from infra import embed

settings = embed.settings()
google = gcp.Provider(
    "google", project=settings.project, default_labels={"environment": settings.environment, "layer": "tpu"}
)
opts = pulumi.ResourceOptions(provider=google)

storage = embed.layer(embed.StorageOutputs, settings, google)
network = embed.layer(embed.NetworkOutputs, settings, google)
slices = embed.named_slices(settings, storage, network, opts=opts)

results = gcp.storage.Bucket(
    "results",
    name=f"{settings.project}-results",
    location="us-east5",
    uniform_bucket_level_access=True,
    public_access_prevention="enforced",
    opts=opts,
)
gcp.storage.BucketIAMMember(
    "trainer-writes",
    bucket=results.name,
    role="roles/storage.objectUser",
    member=storage.service_account_email.apply(lambda email: f"serviceAccount:{email}"),
    opts=opts,
)

pulumi.export("addresses", {slice_.node.name: slice_.addresses for slice_ in slices})
pulumi.export("results", results.name)
