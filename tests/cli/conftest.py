from tests.infra.conftest import pulumi_cli
from tests.infra.publish.conftest import bucket

__all__ = ["bucket", "pulumi_cli"]
