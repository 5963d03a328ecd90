"""All pages: generated blocks are current; commands, settings, tests and links that they name exist."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
import yaml

from benchmarks.__main__ import COMMANDS, RESULTS
from benchmarks.page import PAGE
from cli.__main__ import tpu
from cli.command import Forwarded
from infra.engine.registry import section_classes
from infra.layers.gke.settings import PoolSettings
from infra.settings.schema import keys_of, records
from rehearsal.scenario.guides import commands
from rehearsal.scenario.scenario import find, load, name_of, own
from tests.rehearsal.providers.replay import RECORDINGS
from tools import docs
from tools.blocks import ROOT, filled, pages, table
from tools.budget import MOST_WORDS, counted
from tools.budget import words as count
from tools.settings_docs import PAGES, add_pages, default_of
from workload.__main__ import main as workload

MOST_COLUMNS = 98  # of a block on GitHub; wider ones are scrolled
HISTORY = {"log.md", "CHANGELOG.md"}


def written(root: Path) -> list[Path]:
    """Return a checkout's pages."""
    folders = (root / name for name in ("docs", "examples"))
    return [*root.glob("*.md"), *(page for folder in folders for page in sorted(folder.rglob("*.md")))]


DOCUMENTS = {
    path: path.read_text(encoding="utf-8")
    for path in written(ROOT)
    if path.name not in HISTORY and path.parent.name != "decisions"
}
TEXT = re.sub(r" \\\n +", " ", "\n".join(DOCUMENTS.values()))
README = DOCUMENTS[ROOT / "README.md"]


def test_generated_blocks_are_current() -> None:
    assert len(pages()) >= 15
    old = [page.name for page in pages() if filled(page.read_text("utf-8")) != page.read_text("utf-8")]
    assert not old, "run 'make docs'"


def test_a_block_is_replaced_between_its_lines_and_nothing_else() -> None:
    page = "a\n<!-- begin generated: tools.docs.policy_count -->\nold\n\nold\n<!-- end generated -->\nb\n"
    assert filled(page) == page.replace("old\n\nold", docs.policy_count())
    with pytest.raises(ValueError, match="a block that begins with"):
        filled(page.replace("<!-- end generated -->", ""))


def test_a_table_escapes_what_divides_cells() -> None:
    assert table(("a", "b:"), [("x|y", 3)]) == "| a | b |\n| --- | ---: |\n| x\\|y | 3 |"


def lines(program: str) -> Iterable[str]:
    """Command lines in blocks of code, without comments and without what follows in the shell."""
    written = re.findall(rf"^(?:    )?{program} ([a-z-]+(?: .*)?)$", TEXT, re.MULTILINE)
    return sorted({re.split(r" {2,}| #| &&|;| &$", line)[0] for line in written if "which it" not in line})


def refusal(line: str, command: click.Command = tpu) -> str:
    """Parse a command line without running it; the reason why it can't be parsed."""
    context, words = None, shlex.split(line)
    try:
        while isinstance(command, click.Group):
            context = click.Context(command, parent=context, obj=ROOT)
            _, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
        if isinstance(command, Forwarded):
            return parsed_by_the_workload([*([] if command.name == "workload" else [command.name]), *words])
        command.make_context(command.name, words, parent=context)
    except click.UsageError as error:
        return f"{line}: {error.message}"
    return ""


def parsed_by_the_workload(words: list[str | None]) -> str:
    with pytest.raises(SystemExit) as end:
        workload([*map(str, words), "--help"])
    return "" if end.value.code == 0 else f"workload {words}"


def test_command_lines_of_the_pages_are_understood() -> None:
    known = lines("tpu")
    assert len(known) >= 60
    assert [problem for line in known if (problem := refusal(line))] == []


def test_command_lines_of_the_workload_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    known = [shlex.split(line) for line in lines("workload")]
    assert len(known) >= 20
    for words in known:
        assert parsed_by_the_workload([*words]) == ""
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= options, words


def test_commands_that_are_named_exist() -> None:
    named = re.findall(r"`(?:command )?tpu ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", TEXT)
    assert len(named) > 100
    for name, _, second in {tuple(name.partition(" ")) for name in named}:
        command = tpu.get_command(click.Context(tpu), name)
        assert command, name
        if isinstance(command, click.Group) and second:
            assert second in command.list_commands(click.Context(command)), f"tpu {name} {second}"


def test_what_is_printed_beside_other_programs_is_understood() -> None:
    """The right column of the pages for those who come from elsewhere."""
    pages = [text for path, text in DOCUMENTS.items() if path.name.startswith("from-")]
    cells = re.findall(r"^\| .* \| (.*) \|$", "\n".join(pages), re.MULTILINE)
    printed = re.findall(r"`([^`]+)`", "\n".join(cells))
    known = [line.removeprefix("tpu ") for line in printed if line.startswith("tpu ")]
    assert len(known) >= 30
    assert [problem for line in known if (problem := refusal(line))] == []
    local = [shlex.split(line)[1:] for line in printed if line.startswith("workload ")]
    assert len(local) >= 4
    assert [problem for words in local if (problem := parsed_by_the_workload([*words]))] == []
    sections = "train|data|optimizer|compute|mesh|checkpoint|observe|lora"
    key = re.compile(rf"((?:{sections})\.\w+)(?:=.*)?")
    settings = {match[1] for line in printed if (match := key.fullmatch(line))} - {"train.py"}
    assert len(settings) >= 25
    declared = set(
        re.findall(r"^\| `(\w+\.\w+)` \|", DOCUMENTS[ROOT / "docs/reference/trainer.md"], re.MULTILINE)
    )
    assert settings - declared == set()


def test_make_targets_that_are_named_exist() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = set(re.findall(r"^  make ([a-z-]+) ", shown, re.MULTILINE))
    assert listed == set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|`command |^ {4})make ([a-z]+)", TEXT, re.MULTILINE)) <= listed
    assert f"SCENARIO={'|'.join(sorted(map(name_of, own())))} " in shown


def settings() -> Iterator[str]:
    for layer, section in section_classes().items():
        yield from (f"{layer}:{key}" for key in keys_of(section))
        for key, record in records(section).items():
            yield from (f"{layer}:{key}[].{item}" for item in keys_of(record))


def test_settings_that_are_named_exist() -> None:
    pattern = rf"`(?:setting )?((?:{'|'.join(section_classes())}):[a-zA-Z]+(?:\[\]\.[a-zA-Z]+)?)"
    named = set(re.findall(pattern, TEXT))
    assert len(named) > 150
    assert named - set(settings()) == set()


def test_tests_that_are_named_exist() -> None:
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py|/)", TEXT))
    files = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert len(named) > 40
    assert named - {name for text in files for name in re.findall(r"def (test_\w+)\(", text)} == set()


@pytest.mark.parametrize("page", ["extraction", "fleet"])
def test_every_defect_of_activation_extract_names_a_test(page: str) -> None:
    table = DOCUMENTS[ROOT / f"docs/internals/{page}.md"]
    numbered = re.findall(r"^\| (\d+) \| .+ \|$", table, re.MULTILINE)
    assert [int(number) for number in numbered] == list(range(1, len(numbered) + 1))
    assert len(re.findall(r"^\| \d+ \| .+ \| `test_.+` \|$", table, re.MULTILINE)) == len(numbered) > 10


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = (
        re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(root: Path) -> Iterator[str]:
    """Yield links of a checkout's pages that lead to no file, or to no heading of it."""
    for path in written(root):
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text("utf-8")):
            page = path.parent / target if target else path
            if "://" in target or target.startswith("mailto:"):
                continue
            if not page.exists() or (anchor and page.suffix == ".md" and anchor not in anchors(page)):
                yield f"{path.relative_to(root)}: {target}#{anchor}"


def test_links_between_documents_lead_somewhere() -> None:
    assert [*broken_links(ROOT)] == []


def test_a_link_to_no_file_or_no_heading_is_reported(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# A `b` title\n[up](../a.md) [self](#a-b-title)\n")
    (tmp_path / "a.md").write_text("[b](docs/b.md#a-b-title) [no](docs/b.md#c) [none](docs/c.md)\n")
    assert [*broken_links(tmp_path)] == ["a.md: docs/b.md#c", "a.md: docs/c.md#"]


def test_every_section_of_settings_has_its_page(tmp_path: Path) -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*section_classes()}
    add_pages(tmp_path)
    assert "| `fleet:ssh` |" in filled((tmp_path / "fleet.md").read_text("utf-8"))


def test_what_a_user_reads_stays_within_its_budget() -> None:
    assert sum(counted().values()) <= MOST_WORDS, "python -m tools.budget"


def test_tables_and_definitions_of_links_are_not_counted() -> None:
    block = "<!-- begin generated: a.b -->\n| x | y |\n\nz\n<!-- end generated -->"
    assert count(f"two words\n{block}\n[c]: https://example.com\nthree") == 3


def too_wide(page: str) -> list[str]:
    """Return lines of a page's blocks that GitHub clips; generated ones and printed messages aside."""
    text = re.sub(r"<!-- begin generated: .*?<!-- end generated -->", "", page, flags=re.DOTALL)
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
    code = [*fenced, *re.findall(r"^ {4}(.+)$", text, re.MULTILINE)]
    return [line for line in code if len(line) > MOST_COLUMNS and "; only one stack can" not in line]


def test_blocks_of_code_fit_githubs_width() -> None:
    pages = [*(ROOT / "docs/guides").glob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.md")]
    assert len(pages) >= 20
    assert {page.name: wide for page in pages if (wide := too_wide(page.read_text("utf-8")))} == {}


def test_a_line_of_code_that_is_too_wide_is_found() -> None:
    wide, prose = "x" * (MOST_COLUMNS + 1), "y" * 120
    page = f"{prose}\n| {prose} |\n```bash\n{wide}\n```\n    {wide}\n    {wide[1:]}\n"
    generated = f"<!-- begin generated: a.b -->\n```\n{wide}\n```\n<!-- end generated -->\n"
    assert too_wide(generated + page) == [wide, wide]


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(
        int(path.name[:4]) for path in (ROOT / "docs" / "internals" / "decisions").glob("[0-9]*.md")
    )
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_readme_is_short_and_its_commands_are_executed() -> None:
    executed = {
        *(
            "make test",
            "make rehearse",
            "make setup",
            "export PATH=$PWD/.venv/bin:$PATH",
            "tpu doctor",
        ),  # by CI, by tests
        *"".join(commands(ROOT / "docs/guides/training.md").values()).splitlines(),  # by tests
    }
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    written = {line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()}
    assert {part for line in written for part in line.split(" && ")} <= executed
    assert all(command in (ROOT / ".ci" / "run").read_text() for command in ("make test", "make rehearse"))
    assert len(README.splitlines()) <= 80


def test_defaults_beside_those_of_googles_guide_are_the_settings() -> None:
    rows = re.findall(r"^\| `\w+` \| .* \| (`gke:.*?|`network:.*?) \| (.*?) \| .*\|$", TEXT, re.MULTILINE)
    assert len(rows) >= 25
    for paths, defaults in rows:
        for path, default in zip(paths.split("<br>"), defaults.split("<br>"), strict=True):
            layer, _, key = path.strip("`").partition(":")
            kind = PoolSettings if "[]." in key else section_classes()[layer]
            assert default_of(keys_of(kind)[key.rpartition(".")[2]]) == default, path


@pytest.mark.parametrize(("page", "name"), [("infrastructure", "tpu-dev"), ("code", "mine")])
def test_a_changed_command_is_installed_on_one_slice_and_its_running_job_changed_over(
    page: str, name: str
) -> None:
    where = f"dev --slice {name}"
    install = f"    tpu fleet exec {where} -- sudo systemctl restart google-startup-scripts"
    assert f"{install}\n    tpu restart {where}\n" in DOCUMENTS[ROOT / "docs" / "guides" / f"{page}.md"]


def test_the_infrastructure_guide_is_run_by_a_scenario() -> None:
    steps = [step.arguments for step in load(find("guides")).steps if step.kind == "guide"]
    first, *others = commands(ROOT / "docs/guides/infrastructure.md")
    assert first.startswith("1. Log in"), "a user's own login to a real cloud"
    assert [section for step in steps for section in step["sections"]] == others
    assert {step["page"] for step in steps} == {"docs/guides/infrastructure.md"}


def test_the_example_of_a_scenario_is_one(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", DOCUMENTS[ROOT / "docs/internals/scenarios.md"], re.DOTALL)
    assert example
    (tmp_path / "example.py").write_text(example[1])
    assert len(load(tmp_path / "example.py").steps) == 8


def test_differences_of_the_stand_in_name_recordings_that_exist() -> None:
    rows = (
        DOCUMENTS[ROOT / "docs/internals/standin.md"]
        .partition("| difference | reason |")[2]
        .partition("\n\n")[0]
    )
    named = {
        name for row in rows.splitlines()[2:] for name in row.strip("| ").rpartition(" | ")[2].split(", ")
    }
    assert "storage.Bucket" in named
    assert [name for name in named - {"–", "all"} if not (RECORDINGS / f"{name}.json").is_file()] == []


def test_the_workflow_to_copy_calls_what_exists() -> None:
    steps = yaml.safe_load((ROOT / "docs/guides/plan-comment.yml").read_text("utf-8"))["jobs"]["plan"][
        "steps"
    ]
    text = "\n".join(step.get("run", "") for step in steps)
    assert re.search(r"tpu plan .*--format markdown", text)
    scripts = re.findall(r"(tools/[a-z]+\.sh)((?: [a-z]+)+)", text)
    assert scripts
    for name, parts in scripts:
        assert all(f"\ninstall_{part}()" in (ROOT / name).read_text("utf-8") for part in parts.split()), name


def test_every_benchmark_is_on_the_page_with_its_machine() -> None:
    assert [name for name in COMMANDS if f"`python -m benchmarks {name}`" not in PAGE.read_text()] == []
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text())
        assert {"day", "cpu", "cores", "memory_gib", "python", "versions"} <= result["on"].keys(), path.name
        assert result["took_s"] > 0


@pytest.mark.parametrize("line", ["frobnicate", "fleet frobnicate", "plan dev --frobnicate", "plan"])
def test_a_line_that_no_command_understands_is_reported(line: str) -> None:
    assert refusal(line).startswith(line)
