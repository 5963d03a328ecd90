"""Notification channels: e-mail, webhook, Pub/Sub, or an existing channel."""

import pulumi
import pulumi_gcp as gcp

from google_facts.agents import AGENTS
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
        self._child = pulumi.ResourceOptions(parent=self)
        self.topics = {}
        self.ids = {channel.name: self._channel(channel) for channel in settings[MonitoringSettings].channels}
        self.register_outputs({})

    def _channel(self, channel: ChannelSettings) -> pulumi.Output[str]:
        if channel.existing:
            # Read, so that a preview already finds out that there is none.
            name, existing = channel.name, channel.existing
            return gcp.monitoring.NotificationChannel.get(name, existing, opts=self._child).id
        if channel.email:
            return self._made(channel, "email", {"email_address": channel.email}).id
        if channel.webhook:
            return self._made(channel, "webhook_tokenauth", {"url": channel.webhook}).id
        return self._publishing(channel)

    def _made(
        self,
        channel: ChannelSettings,
        kind: str,
        labels: dict[str, pulumi.Input[str]],
        depends_on: tuple[pulumi.Resource, ...] = (),
    ) -> gcp.monitoring.NotificationChannel:
        environment = self._settings.environment
        return gcp.monitoring.NotificationChannel(
            channel.name,
            display_name=f"tpu {environment}: {channel.name}",
            type=kind,
            labels=labels,
            user_labels=names.labels(environment, "monitoring"),
            opts=pulumi.ResourceOptions.merge(self._child, pulumi.ResourceOptions(depends_on=depends_on)),
        )

    def _publishing(self, item: ChannelSettings) -> pulumi.Output[str]:
        """Return a topic, a channel, and the right of Google's agent, which comes with the first channel."""
        topic = gcp.pubsub.Topic(str(item.topic), name=item.topic, opts=self._child)
        self.topics[item.name] = topic.id
        channel = self._made(item, "pubsub", {"topic": topic.id}, (topic,))
        number = pulumi.Output.from_input(self._number)
        agent = number.apply(lambda known: f"serviceAccount:{AGENTS['monitoring-notification'].email(known)}")
        gcp.pubsub.TopicIAMMember(
            f"{item.topic}-publisher",
            topic=topic.id,
            role="roles/pubsub.publisher",
            member=agent,
            opts=pulumi.ResourceOptions.merge(self._child, pulumi.ResourceOptions(depends_on=[channel])),
        )
        return channel.id
