"""Settings: every problem at once, and which of them make another run."""

from dataclasses import replace
from pathlib import Path

import pytest

from workload.errors import ConfigError
from workload.preprocess import config as configs
from workload.preprocess.config import Config


def test_every_problem_is_named_with_its_rule(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[input]\nformat = "csv"\nfeild = "body"\n[output]\nshards = 0\n[dedup]\nmethod = "near"\n'
    )
    with pytest.raises(ConfigError) as refused:
        configs.load(str(tmp_path / "mine.toml"), ["tokenizer.name="])
    text = str(refused.value)
    assert "5 problems" in text
    assert 'input.format = "csv": must be one of auto, text, lines, parquet' in text
    assert "did you mean input.field?" in text
    assert "output.shards = 0: must be 1 to 65536" in text
    assert 'dedup.method = "near": must be one of none, exact, fuzzy' in text


def test_sources_and_output_are_needed_and_a_script_stands_alone() -> None:
    with pytest.raises(ConfigError, match=r"input.sources = \[\]: must name files(.|\n)*output.url"):
        configs.load("text.toml")
    given = ["input.sources=raw", "output.url=out", "filters.script=mine.py", "filters.min_characters=9"]
    with pytest.raises(ConfigError, match=r"filters.script(.|\n)*leave filters.min_characters out"):
        configs.load("text.toml", given)


@pytest.mark.parametrize("given", ["input.sources=", 'input.sources=["raw", ""]'])
def test_an_empty_source_is_refused_and_isnt_the_working_folder(given: str) -> None:
    with pytest.raises(ConfigError, match=r'input.sources = \[.*""\]: must name files'):
        configs.load("text.toml", [given, "output.url=out"])


def test_storage_that_isnt_written_is_refused_and_isnt_a_folder_of_that_name() -> None:
    with pytest.raises(ConfigError, match=r"output.url = s3://b/x: s3:// isn't supported"):
        configs.load("text.toml", ["input.sources=raw", "output.url=s3://b/x"])


def test_what_changes_no_byte_is_not_part_of_a_run() -> None:
    item = Config()
    elsewhere = replace(
        item, output=replace(item.output, url="gs://b/t"), input=replace(item.input, sources=("x",))
    )
    assert replace(elsewhere, runtime=replace(item.runtime, partitions=7)).decides() == item.decides()
    assert replace(item, output=replace(item.output, shards=7)).decides() != item.decides()
    assert replace(item, dedup=replace(item.dedup, method="fuzzy")).decides() != item.decides()
