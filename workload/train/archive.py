"""Checkpoints of a run, read from outside: verification and export.

workload checkpoints verify gs://my-project-checkpoints/runs/first
workload checkpoints export gs://my-project-checkpoints/runs/first --out first-hf/
"""
# mypy: allow-untyped-calls

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from settings_schema import foreign
from workload.errors import RunError
from workload.model import decoder, huggingface, peft
from workload.model.transformers_config import CONFIG
from workload.modules.config import ModuleConfig
from workload.runs import location
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store
from workload.train import base, checksums
from workload.train.cluster import first_line
from workload.train.past import Past, complete_step
from workload.train.stored_steps import list_steps


@dataclass(frozen=True)
class Checked:
    """Result of verifying a checkpoint.

    Attributes:
        problem: empty if it is usable.
        digests: of its parameters and its optimizer's state.
        as_ended: True if they match final.json, which only the last step of a run can.
    """

    step: int
    problem: str
    digests: dict[str, str]
    as_ended: bool = False


def verify(store: Store, step: int | None = None) -> list[Checked]:
    """Read all data of a run's complete checkpoints, or of a single one.

    A checkpoint is usable if all of it is readable and every number is finite; the last one of a finished
    run must also match its final.json.
    """
    past = Past.read(store)
    try:
        final = foreign.parse(store.read("final.json"))
    except MissingObjectError:
        final = {}
    except ValueError as error:
        fix = "remove it; a restart of the run writes it again"
        raise RunError(f"{store.url}/final.json: is damaged: {error}\n    fix: {fix}") from None
    complete = list_steps(store).complete
    checked = []
    for number in [s for s in complete if step in (None, s)]:
        try:
            state = past.restore(number, whole_state=True)
        except RunError as error:
            checked.append(Checked(number, first_line(error), {}))
            continue
        digests = checksums.digests(state)
        bad = _not_finite(state)
        problem = f"{bad[0]} and {len(bad) - 1} more arrays hold non-finite numbers" if bad else ""
        known = {name: final[name] for name in digests if name in final}
        if final.get("step") == number and known != {name: digests[name] for name in known}:
            problem = "differs from final.json"
        checked.append(Checked(number, problem, digests, not problem and final.get("step") == number))
    if step is not None and not checked:
        raise RunError(f"{store.url}: no complete checkpoint {step}\n    fix: one of {complete or 'none'}")
    return checked


def _not_finite(state: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.all(jnp.isfinite(leaf)))
    ]


def export(
    store: Store,
    out: Path,
    step: int | str | None,
    dtype: str,
    progress: Callable[[str], None],
    merged: bool = False,
    beside: str | None = None,
) -> tuple[int, list[str]]:
    """Write a checkpoint's parameters as a Hugging Face folder; return its step and the files.

    Adapters are written as PEFT reads them, with the name of their base, `beside` where PEFT opens another;
    or, `merged`, added to the weights that they were trained beside. A module's are the arrays by their
    paths, such as `blocks.0.up.kernel`, beside its name and settings.

    Raises:
        RunError: no complete checkpoint is readable, or `out` isn't empty or can't be written.
    """
    past = Past.read(store)
    chosen = complete_step(store, step)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"--out {out}: isn't empty\n    fix: name a new folder, or remove it")
    if merged and not past.lora.rank:
        raise RunError(f"--merged: {store.url} has no adapters\n    fix: leave it out")
    if beside and (merged or not past.lora.rank):
        raise RunError(f"--base {beside}: only adapters name a base\n    fix: leave it out")
    params = past.restore(chosen, whole_state=False)["params"]
    if merged:
        params = base.merged(past, params)
    folder = f"{location.TOKENIZER}/"
    tokenizer = {name.removeprefix(folder): store.read(name) for name in store.list(folder)}
    if not past.generation.ends:
        progress("an earlier version began this run without an end token: generation won't stop")
    try:
        if isinstance(past.model, ModuleConfig):
            about = asdict(past.model)
            if past.lora.rank and not merged:
                about |= {"lora": asdict(past.lora), "base": past.base}
            files = _save_arrays(out, params, about, dtype)
        elif past.lora.rank and not merged:
            beside = beside or past.base
            if beside.startswith(("gs://", "run:")):
                fix = "--base FOLDER, or --base with an id of the hub, names one"
                progress(f"PEFT can't open {beside}, the base in {peft.CONFIG}: {fix}")
            files = peft.save(out, params["layers"], past.lora, beside, dtype)
            for name, content in tokenizer.items():
                (out / name).write_bytes(content)
            return chosen, files
        else:
            files = huggingface.save(out, params, past.model, dtype, past.generation, progress=progress)
        past.generation.write(out, tokenizer)
        return chosen, files
    except (OSError, SafetensorError) as error:
        width = {"bfloat16": 2, "float32": 4}[dtype]
        size_gb = sum(leaf.size for leaf in jax.tree.leaves(params)) * width / 1e9
        fix = f"remove the partial export, make room for {size_gb:.3g} GB, or name a writable folder"
        raise RunError(f"--out {out}: can't be written: {first_line(error)}\n    fix: {fix}") from None


def _save_arrays(out: Path, params: decoder.Params, about: dict[str, Any], dtype: str) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    arrays = {
        ".".join(part.key for part in path): np.asarray(jnp.asarray(leaf).astype(dtype))
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    save_file(arrays, out / huggingface.WHOLE)
    (out / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
    return [huggingface.WHOLE]
