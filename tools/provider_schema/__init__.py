"""Declarations of the Terraform provider behind pulumi-gcp: rehearsal/providers/gcp/terraform.json.

`main.go` makes it, within a checkout of the provider. No set-up and no test runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def command(table: Mapping[str, Any]) -> str:
    """Return the command that makes `table` again, from the provider's checkout at its commit."""
    commit = table["source"].rpartition("/")[2]
    return (
        f"go run -gcflags='all=-N -l' ./cmd/provider_schema {commit} {table['version']} {table['read']} "
        + (" ".join(sorted(table["types"])))
    )
