"""One grant of those that `python -m tests.proofs grants` takes away."""

import re
from pathlib import Path

import pytest

from infra.layers.pipeline import access, places
from tests.proofs.grants import SMALL, Proof
from tests.proofs.pipeline_lab import BUCKET, RAW, PipelineLab, named


@pytest.mark.slow
@pytest.mark.root
def test_a_run_that_may_not_write_its_record_names_the_role_and_continues_with_it(tmp_path: Path) -> None:
    lab = PipelineLab(tmp_path, {**SMALL, "pipeline:train": "none", "pipeline:code": "0" * 64})
    try:
        lab.bucket(RAW)
        lab.bring_up(publish=False)
        lab.text("corpus")
        proof = Proof(lab, print)
        records = proof.grant("run", "storage.objectUser", BUCKET, places.RECORDS)
        with proof.away(records, "permission, at begin", "tpu pipeline run ENV FOLDER") as printed:
            printed.append(lab.tpu("pipeline", "run", "dev", f"gs://{RAW}/corpus/", "--yes", fine=False))
        (run,) = re.findall(r"submitted as (r\d+)", printed[0])
        lab.tpu("pipeline", "retry", "dev", run)
        assert "could not fetch" in lab.ended(run)["why"], "its code, which nobody has published"
    finally:
        lab.close()
    assert (proof.rows[0].grant, records.who) == (named(records), "tpu-pipeline-run")
    assert access.lacking(lab.settings, proof.rows[0].sentence.replace("BUCKET", BUCKET)) == records.named
