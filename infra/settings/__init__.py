"""Settings of all layers: `Pulumi.<env>.yaml`, typed and checked before the first request."""

from infra.settings.parser import parse
from infra.settings.schema import Settings
from infra.settings.sources import from_file, from_pulumi

__all__ = ["Settings", "from_file", "from_pulumi", "parse"]
