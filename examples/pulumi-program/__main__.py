"""Program of one stack: the storage and network layers, the slices, and a topic of your own beside them."""

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

topic = gcp.pubsub.Topic("finished-runs", name="finished-runs", opts=opts)
gcp.pubsub.TopicIAMMember(
    "trainer-publishes",
    topic=topic.name,
    role="roles/pubsub.publisher",
    member=storage.service_account_email.apply(lambda email: f"serviceAccount:{email}"),
    opts=opts,
)

pulumi.export("addresses", {slice_.node.name: slice_.addresses for slice_ in slices})
pulumi.export("topic", topic.name)
