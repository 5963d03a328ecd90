"""The one explicit provider of a stack. Default providers are disabled in `Pulumi.<env>.yaml`, so a
resource that forgot it fails instead of landing in whatever project the shell points to.
"""

import pulumi_gcp as gcp

from infra import names
from infra.settings import Settings


def make(settings: Settings, layer: str) -> gcp.Provider:
    """Google Cloud, with the labels that everything carries."""
    return gcp.Provider(
        "gcp",
        project=settings.gcp.project,
        default_labels={**settings.gcp.default_labels, **names.labels(settings.environment, layer)},
    )
