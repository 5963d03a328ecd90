"""Lines of the function that alerts count."""

import pytest

from tests.pipeline.test_sweep import lines
from tests.pipeline.world import Pipeline, given


@pytest.fixture(name="pipeline")
def _pipeline() -> Pipeline:
    return Pipeline(given())


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_a_batch_that_failed_or_was_ended_has_a_line_of_its_own(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """The alert `batch-failed` counts it: Google documents no severity of a batch's last audit entry."""
    run = pipeline.google.submit()
    pipeline.sweep()
    pipeline.google.move(state, "disk full")
    pipeline.sweep(2)
    (line,) = lines(caplog, "pipeline_batch")
    assert line == {"event": "pipeline_batch", "run": run, "batch": f"tpu-pipeline-{run}", "state": state}
