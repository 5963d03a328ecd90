"""Outputs of the pipeline layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.core.outputs import Outputs, output

if TYPE_CHECKING:
    from pulumi import Output


class PipelineOutputs(Outputs, layer="pipeline"):
    """The pipeline, for people and commands."""

    function: Output[str] = output("`projects/PROJECT/locations/REGION/functions/tpu-pipeline`")
    function_url: Output[str] = output("URL of the function, for the trigger's account alone")
    raw_bucket_name: Output[str] = output("bucket of the raw text")
    scratch_bucket_name: Output[str] = output("bucket of code, and of what Spark leaves")
    tokens_folder: Output[str] = output("`gs://BUCKET/tokens`, with a folder for each run")
    accounts: Output[dict[str, str]] = output("mapping: address of each account", key="account")
    trigger: Output[str] | None = output("the trigger by an object's event", default=None)
    sweep: Output[str] = output("the job that calls the function every `pipeline:sweepMinutes`")
    useful_commands: Output[dict[str, str]] = output("mapping: what to type", key="what")
