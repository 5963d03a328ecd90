from tests.infra.conftest import pulumi_cli

__all__ = ["pulumi_cli"]
