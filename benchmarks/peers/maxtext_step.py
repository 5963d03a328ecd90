"""MaxText's train step, compiled ahead of time; run by the interpreter of its environment.

`python maxtext_step.py FOLDER BASE_YML KEY=VALUE …` writes the program's text, and what the compiler says of
its memory, into the folder.
"""

import json
import sys
from pathlib import Path
from typing import Any

from absl import app
from maxtext.trainers.pre_train import train_compile


def main() -> None:
    """Compile as MaxText's own command does, and keep the program."""
    folder, arguments = Path(sys.argv[1]), [sys.argv[0], *sys.argv[2:]]
    compile_step = train_compile.jit_and_compile

    def kept(*given: Any, **named: Any) -> Any:
        compiled = compile_step(*given, **named)
        memory = compiled.memory_analysis()
        names = ("argument", "output", "alias", "generated_code", "host_temp", "host_argument")
        sizes = {name: getattr(memory, f"{name}_size_in_bytes") for name in names}
        (folder / "program.txt").write_text(compiled.as_text())
        (folder / "memory.json").write_text(json.dumps(sizes))
        return compiled

    train_compile.jit_and_compile = kept
    app.run(train_compile.main, arguments)


if __name__ == "__main__":
    main()
