"""ARC tasks become prompts that are functions of their names; what is no task is rejected by name."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.chatting import tokenizer
from workload.__main__ import main
from workload.data import stream as streams
from workload.data.arc import Tasks
from workload.data.augment import Augmentation, Grid, draw
from workload.data.template import Template

TASK = {
    "train": [{"input": [[0, 1, 2]], "output": [[2], [1], [0]]}, {"input": [[3, 4]], "output": [[4], [3]]}],
    "test": [{"input": [[5, 6], [0, 0]]}, {"input": [[7]], "output": [[7]]}],
}
PAIRS = len(TASK["train"])
PLAIN = Augmentation(0, tuple(range(10)), (0, 1))
AS_IT_STANDS = """\
Each example is a pair of grids: one rule turns every input into its output. A digit is a colour.

Example 1

Input:
012

Output:
2
1
0

Example 2

Input:
34

Output:
4
3

Which output does the rule make of this input?

Input:
56
00

Output:
"""


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    width = draw(st.integers(1, 30))
    row = st.lists(st.integers(0, 9), min_size=width, max_size=width)
    return draw(st.lists(row, min_size=1, max_size=30))


def looks() -> st.SearchStrategy[Augmentation]:
    return st.builds(draw, st.integers(), st.text(), st.integers(0), st.integers(0), st.integers(0, 9))


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def prompts(source: Path, *arguments: Any) -> dict[str, str]:
    samples = list(Tasks([source], *arguments).samples())
    assert not [sample for sample in samples if sample.problem]
    return {sample.name: sample.content for sample in samples}


def streamed(source: Path, out: Path, *options: str) -> tuple[streams.Stream, list[dict[str, Any]]]:
    arguments = ["--source", str(source), "--out", str(out), "--arc", *options]
    assert main(["data", "streams", *arguments]) == 0
    aside = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    return streams.read(str(out / "stream_000.safetensors")), aside


@given(looks(), grids())
def test_what_an_augmentation_did_can_be_undone(look: Augmentation, grid: Grid) -> None:
    assert look.undo(look.apply(grid)) == grid
    assert look.apply(look.undo(grid)) == grid


@given(looks(), st.integers(0, 9))
def test_colours_and_pairs_are_permuted(look: Augmentation, colour: int) -> None:
    assert sorted(look.colours) == list(range(10))
    assert sorted(look.order) == list(range(len(look.order)))
    assert look.apply([[colour]]) == [[look.colours[colour]]]


def test_the_symmetries_are_those_of_the_square() -> None:
    colours = PLAIN.colours
    result = [Augmentation(symmetry, colours, ()).apply([[0, 1], [2, 3], [4, 5]]) for symmetry in range(8)]
    assert result == [
        [[0, 1], [2, 3], [4, 5]],
        [[4, 2, 0], [5, 3, 1]],  # a quarter to the right
        [[5, 4], [3, 2], [1, 0]],
        [[1, 3, 5], [0, 2, 4]],
        [[1, 0], [3, 2], [5, 4]],  # mirrored
        [[5, 3, 1], [4, 2, 0]],
        [[4, 5], [2, 3], [0, 1]],
        [[0, 2, 4], [1, 3, 5]],
    ]


@given(st.integers(), st.text(), st.integers(0, 5), st.integers(0, 1000))
def test_eight_augmentations_in_a_row_have_each_symmetry_once(
    seed: int, task: str, test: int, first: int
) -> None:
    result = {draw(seed, task, test, number, 3).symmetry for number in range(first, first + 8)}
    assert result == set(range(8))


def test_each_order_and_each_colour_comes_about_as_often_as_any_other() -> None:
    result = [draw(0, f"{number}", 0, 0, 3) for number in range(6000)]
    orders = Counter(look.order for look in result)
    assert len(orders) == 6
    assert all(850 < count < 1150 for count in orders.values())  # 5 standard deviations about 1000
    moved = [look.colours for look in result if look.colours[0] != 0]
    assert 440 < len(moved) < 640  # 9 in 10 of those 1 in 10 whose black may move: 540
    became = Counter(look.colours[3] for look in result if look.colours[0] == 0)
    assert set(became) == set(range(1, 10))
    assert all(480 < count < 740 for count in became.values())


def test_a_task_as_it_stands(tmp_path: Path) -> None:
    result = prompts(write(tmp_path / "007bbfb7.json", TASK), 0)
    assert list(result) == ["007bbfb7/0", "007bbfb7/1"]
    assert result["007bbfb7/0"] == AS_IT_STANDS
    assert result["007bbfb7/1"].endswith("Input:\n7\n\nOutput:\n")


def test_a_prompt_shows_its_augmentation(tmp_path: Path) -> None:
    result = prompts(write(tmp_path / "t.json", TASK))
    assert list(result) == [f"t/{test}/aug_{number}" for test in (0, 1) for number in range(8)]
    assert len(set(result.values())) > 12  # the second test input is one cell, and looks alike turned
    for number in range(8):
        look = draw(0, "t", 0, number, PAIRS)
        blocks = result[f"t/0/aug_{number}"].split("put:\n")[1:]
        shown = [
            look.undo([[int(cell) for cell in row] for row in block.split("\n\n")[0].split()])
            for block in blocks[:-1]
        ]
        pairs = [TASK["train"][item] for item in look.order]
        desired = [grid for pair in pairs for grid in (pair["input"], pair["output"])]
        assert shown == [*desired, TASK["test"][0]["input"]]


def test_a_prompt_is_a_function_of_its_name_alone(tmp_path: Path) -> None:
    tasks = dict.fromkeys(("a", "b", "c"), TASK)
    many = prompts(write(tmp_path / "many.json", tasks))
    backwards = prompts(write(tmp_path / "backwards.json", dict(reversed(tasks.items()))))
    for name, task in tasks.items():
        write(tmp_path / "folder" / f"{name}.json", task)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"task_id": name, **task}) + "\n" for name, task in tasks.items()))
    more = prompts(tmp_path / "many.json", 20)
    assert many == backwards == prompts(tmp_path / "folder") == prompts(lines)
    assert more.items() > many.items()
    assert list(many) != list(backwards)
    second = prompts(tmp_path / "many.json", 8, 1)
    assert second.keys() == many.keys()
    assert sum(second[name] == many[name] for name in many) < len(many) / 4


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_another_process_makes_the_same_streams(hash_seed: str, tmp_path: Path) -> None:
    source = write(tmp_path / "many.json", dict.fromkeys(("a", "ü", "c"), TASK))
    streamed(source, tmp_path / "here", "--streams", "2")
    arguments = ["--arc", "--source", source, "--out", tmp_path / "there", "--streams", "2"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run(
        [sys.executable, "-m", "workload", "data", "streams", *arguments],
        env=environment,
        check=True,
        capture_output=True,
    )
    current, existing = (
        {path.name: path.read_bytes() for path in (tmp_path / place).iterdir()} for place in ("here", "there")
    )
    assert current == existing
    assert len(current) == 4


def test_a_prompt_never_changes_from_one_version_to_the_next() -> None:
    # Streams that are extracted already were split so.
    assert draw(0, "007bbfb7", 0, 3, 5) == Augmentation(6, (0, 1, 8, 5, 7, 3, 4, 9, 2, 6), (1, 2, 0, 3, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": []}, "has no train pairs"),
        ({"train": 3}, "has no train pairs"),
        ({"test": None}, "has no test pairs"),
        ({"test": [{}]}, "input of test 0 is missing"),
        ({"test": [7]}, "input of test 0 is missing"),
        ({"train": [{"input": [[1]]}]}, "output of train 0 is missing"),
        ({"test": [{"input": []}]}, "input of test 0 has 0 rows, not 1 to 30"),
        ({"test": [{"input": [[]]}]}, "input of test 0 has 0 columns, not 1 to 30"),
        ({"test": [{"input": [[0]] * 31}]}, "input of test 0 has 31 rows, not 1 to 30"),
        ({"test": [{"input": [[0] * 31]}]}, "input of test 0 has 31 columns, not 1 to 30"),
        ({"test": [{"input": [[1, 2], [3]]}]}, "is ragged: row 1 has 1 cells, row 0 has 2"),
        ({"test": [{"input": [[1, 2], 3]}]}, "input of test 0 is no list of rows"),
        ({"test": [{"input": "12"}]}, "input of test 0 is no list of rows"),
        ({"test": [{"input": [[10]]}]}, "has 10 in row 0, not a colour from 0 to 9"),
        ({"test": [{"input": [[0, -1]]}]}, "has -1 in row 0, not a colour from 0 to 9"),
        ({"test": [{"input": [[1.0]]}]}, "has a float in row 0, not a colour from 0 to 9"),
        ({"test": [{"input": [[True]]}]}, "has a bool in row 0, not a colour from 0 to 9"),
        ({"test": [{"input": [["1"]]}]}, "has a str in row 0, not a colour from 0 to 9"),
    ],
)
def test_a_malformed_task_is_rejected_and_says_where(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "many.json", {"good": TASK, "bad": {**TASK, **change}, "fine": TASK})
    result, aside = streamed(source, tmp_path / "out", "--augmentations", "1")
    assert result.ids == tuple(f"{name}/{test}/aug_0" for name in ("good", "fine") for test in (0, 1))
    assert result.samples_N.tolist() == [0, 1, 3, 4]
    (item,) = aside
    assert item["where"] == f"{source}: bad"
    assert item["sample"] == 2
    assert item["reason"].startswith("is no ARC task: ")
    assert message in item["reason"]


def test_files_that_hold_no_tasks_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "arc"
    write(folder / "a.json", TASK)
    write(folder / "b" / "a.json", TASK)
    write(folder / "c_solutions.json", {"a": [[[1]], [[7]]]})
    write(folder / "d.json", [])
    write(folder / "e.json", {"x\ny": TASK, "\ud800": TASK, "": TASK, "z": 3})
    (folder / "f.json").write_bytes(b'{"train": ')
    (folder / "g.json").write_bytes(b"\xff\xfe\x00")
    (folder / "h.json").touch()
    (folder / "i.md").write_text("# Tasks\n")
    rows = [{"task_id": "r", **TASK}, TASK, {"task_id": None, **TASK}, [], {"task_id": 7, **TASK}]
    (folder / "j.jsonl").write_bytes(b"\n".join([*(json.dumps(row).encode() for row in rows), b"\xff", b""]))
    result, aside = streamed(folder, tmp_path / "out", "--augmentations", "0")
    assert result.ids == ("a/0", "a/1", "r/0", "r/1", "7/0", "7/1")
    output = {item["where"].removeprefix(f"{folder}/"): item["reason"] for item in aside}
    not_json = {where: reason for where, reason in output.items() if reason.startswith("is not JSON: ")}
    assert set(not_json) == {"f.json", "g.json", "h.json", "i.md", "j.jsonl:6"}
    assert {where: reason for where, reason in output.items() if where not in not_json} == {
        "b/a.json: a/0": "is named 'a/0' like one before it",
        "b/a.json: a/1": "is named 'a/1' like one before it",
        "c_solutions.json": "holds no tasks: solutions, which no prompt shows",
        "d.json": "is no ARC task, and no object of tasks",
        "e.json": "has a name that can't be printed: ''",  # the last of three
        "e.json: z": "is no ARC task: has no train pairs",
        "j.jsonl:2": "has no 'task_id' to name it",
        "j.jsonl:3": "has no 'task_id' to name it",
        "j.jsonl:4": "has no 'task_id' to name it",
    }
    assert len(aside) == 16


def test_a_task_too_long_is_named(tmp_path: Path) -> None:
    large = {**TASK, "test": [{"input": [[0] * 30] * 30}, {"input": [[0]]}]}
    source = write(tmp_path / "many.json", {"large": large})
    result, aside = streamed(source, tmp_path / "out", "--augmentations", "0", "--max-tokens", "900")
    assert result.ids == ("large/1",)
    assert aside[0]["where"] == f"{source}: large/0"
    assert aside[0]["reason"] == f"has {len(AS_IT_STANDS) - 6 + 930} tokens, more than 900"


def test_nothing_but_bad_tasks_is_told_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write(tmp_path / "t.json", {"a": {"train": []}}), tmp_path / "out"
    assert main(["data", "streams", "--source", str(source), "--arc", "--out", str(out)]) == 2
    assert "t.json: a is no ARC task: has no train pairs\n    fix: " in capsys.readouterr().err
    (tmp_path / "memory.json").symlink_to("/proc/self/mem")  # refuses even root
    arguments = ["--source", str(tmp_path / "memory.json"), "--arc", "--out", str(out)]
    assert main(["data", "streams", *arguments]) == 2
    assert "memory.json: can't be read: " in capsys.readouterr().err


def test_a_prompt_in_the_words_of_a_chat_template(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "qwen", "qwen")
    source = write(tmp_path / "t.json", TASK)
    options = ["--augmentations", "0", "--chat", "--system", "Think.", "--tokenizer", str(folder)]
    result, aside = streamed(source, tmp_path / "out", *options)
    messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": AS_IT_STANDS}]
    import tokenizers

    read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = read.decode(result.document(0).tolist(), skip_special_tokens=False)
    assert text == Template(folder).render(messages)
    assert result.ids == ("t/0", "t/1")
    assert aside == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: (
        st.lists(inside) | st.dictionaries(st.sampled_from(["train", "test", "input", "output", "x"]), inside)
    ),
)


@given(JSON)
def test_any_json_is_tasks_or_named(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content))
    for sample in Tasks([path], 1).samples():
        assert bool(sample.problem) != bool(sample.content)
        assert sample.where.startswith(str(path))
