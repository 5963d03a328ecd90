"""Names in Vertex AI TensorBoard.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards.experiments/create
"""

import hashlib
import re

TENSORBOARD = re.compile(r"projects/[a-z0-9:.-]+/locations/[a-z0-9-]+/tensorboards/[\w-]+")
IS_TENSORBOARD = "projects/P/locations/L/tensorboards/T"
ID = re.compile("[a-z0-9][a-z0-9-]{0,127}")
IS_ID = "1 to 128 lowercase letters, digits and '-', first a letter or digit"


def id_of(title: str) -> str:
    """Return the title if it is a valid id, else a unique id derived from it."""
    if ID.fullmatch(title):
        return title
    plain = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
    return f"{plain[:100] or 'x'}-{hashlib.sha256(title.encode()).hexdigest()[:8]}"
