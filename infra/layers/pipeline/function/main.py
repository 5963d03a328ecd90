"""Entry point of the pipeline's function at Google; the package `pipeline` lies beside it."""

from pipeline.function import handle

__all__ = ["handle"]
