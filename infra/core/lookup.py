"""Lookup of a resource whose id Google chooses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lookup:
    """List in which a type's resources are found by name.

    Attributes:
        product: as in the provider's variable for a private endpoint, `GOOGLE_PRODUCT_CUSTOM_ENDPOINT`.
        base: URL of the API where there is no such variable.
        path: of the list, below it; fields are the resource's inputs, and `project`.
        key: of the list in an answer. Items have `name`, which is the id, and `displayName`.
    """

    product: str
    base: str
    path: str
    key: str

    def url(self, inputs: Mapping[str, Any], project: str) -> str:
        """Return the URL of the list."""
        base = os.environ.get(f"GOOGLE_{self.product}_CUSTOM_ENDPOINT", self.base)
        return base + self.path.format_map({"project": project, **inputs})
