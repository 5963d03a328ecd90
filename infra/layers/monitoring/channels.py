"""Who is notified: e-mail, webhook, Pub/Sub, or a channel that exists."""

import pulumi
import pulumi_gcp as gcp

from infra.core import names
from infra.layers.monitoring.settings import ChannelSettings, MonitoringSettings
from infra.settings.schema import Settings


class Channels(pulumi.ComponentResource):
    """The channels, by the names that the settings give them, and the topics of those that publish."""

    ids: dict[str, pulumi.Output[str]]
    topics: dict[str, pulumi.Output[str]]

    def __init__(self, settings: Settings, number: pulumi.Input[str], opts: pulumi.ResourceOptions):
        super().__init__("tpu:monitoring:Channels", "channels", None, opts)
        self._settings, self._number = settings, number
        self._ours = pulumi.ResourceOptions(parent=self)
        self.topics = {}
        self.ids = {one.name: self._channel(one) for one in settings[MonitoringSettings].channels}
        self.register_outputs({})

    def _channel(self, one: ChannelSettings) -> pulumi.Output[str]:
        if one.existing:
            # Read, so that a preview already finds out that there is none.
            found = gcp.monitoring.NotificationChannel.get(one.name, one.existing, opts=self._ours)
            return found.id
        if one.email:
            return self._made(one, "email", {"email_address": one.email}).id
        if one.webhook:
            return self._made(one, "webhook_tokenauth", {"url": one.webhook}).id
        return self._publishing(one)

    def _made(
        self,
        one: ChannelSettings,
        kind: str,
        labels: dict[str, pulumi.Input[str]],
        depends_on: tuple[pulumi.Resource, ...] = (),
    ) -> gcp.monitoring.NotificationChannel:
        environment = self._settings.environment
        return gcp.monitoring.NotificationChannel(
            one.name,
            display_name=f"tpu {environment}: {one.name}",
            type=kind,
            labels=labels,
            user_labels=names.labels(environment, "monitoring"),
            opts=pulumi.ResourceOptions.merge(self._ours, pulumi.ResourceOptions(depends_on=depends_on)),
        )

    def _publishing(self, one: ChannelSettings) -> pulumi.Output[str]:
        """A topic, a channel, and the right of Google's agent, which comes with the first channel."""
        topic = gcp.pubsub.Topic(str(one.topic), name=one.topic, opts=self._ours)
        self.topics[one.name] = topic.id
        channel = self._made(one, "pubsub", {"topic": topic.id}, (topic,))
        agent = pulumi.Output.concat(
            "serviceAccount:service-", self._number, "@gcp-sa-monitoring-notification.iam.gserviceaccount.com"
        )
        gcp.pubsub.TopicIAMMember(
            f"{one.topic}-publisher",
            topic=topic.id,
            role="roles/pubsub.publisher",
            member=agent,
            opts=pulumi.ResourceOptions.merge(self._ours, pulumi.ResourceOptions(depends_on=[channel])),
        )
        return channel.id
