"""What a run is: its first start writes it down, later starts and every worker compare.

A run whose data, model or optimizer changed on the way would be no run at all, and workers with
different settings would add up gradients of different programs, or wait for each other for good.
"""
# mypy: allow-untyped-calls

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workload.data.tokens import Dataset
from workload.errors import HopelessError
from workload.model import generation, huggingface
from workload.model.generation import Generation
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store
from workload.train.cluster import Cluster
from workload.train.config import Config
from workload.train.step import Step

NAME, TOKENIZER = "config.json", "tokenizer"
_STEPS = "train.steps"


def compare_workers(cluster: Cluster, config: Config, tokens_sha256: str) -> None:
    """Makes sure that all workers would do the same; the first thing that they do together.

    Raises:
        HopelessError: on all of them, naming those that differ from worker 0.
    """
    everything = {"tokens": tokens_sha256, "jaxlib": version("jaxlib"), **asdict(config)}
    mine: dict[str, Any] = json.loads(json.dumps(everything))
    changed = changes(cluster.agree(lambda: mine), mine)
    if unlike := cluster.dissenters(not changed):
        them = f"worker{'s' if len(unlike) > 1 else ''} {', '.join(map(str, unlike))}"
        how = "; ".join(f"{key} is {was} there, {now} here" for key, was, now in changed)
        raise HopelessError(
            f"{them} would train another way than worker 0{f': {how}' if how else ''}\n"
            "    fix: start all workers with the same command, from the same bundle and data"
        )


class RunRecord:
    """Of one start of a run, on this worker."""

    def __init__(self, config: Config, step: Step, dataset: Dataset, cluster: Cluster, extend: bool = False):
        self._extend = extend
        chip = cluster.devices[0]
        program = {
            "chip": chip.device_kind,
            "slices": step.slices,
            "compiler": f"jaxlib {version('jaxlib')}, {chip.client.platform_version}",
        }
        mesh = {name: int(size) for name, size in step.mesh.shape.items()}
        self._config, self._cluster, self._dataset = config, cluster, dataset
        # What the losses depend on, and what changes them by rounding alone.
        self._written: dict[str, Any] = {
            "exact": {**config.identity(), "tokens": dataset.manifest.sha256},
            "rounding": {**config.arithmetic(), "mesh": mesh, **program},
        }

    def settle(self, store: Store) -> bool:
        """Makes sure that this start may continue with what `store` holds.

        Returns:
            Whether the run continued another mesh, or with other arithmetic, before.

        Raises:
            HopelessError: `store` holds another run.
            WeightsError: `train.init_from` holds no weights of this model.
        """
        return bool(self._cluster.agree(lambda: self._compare(store)))

    def write(self, store: Store) -> None:
        """Writes down that the run resumes as it does here; for worker 0."""
        self._store_record(store, self._written)

    @staticmethod
    def _store_record(store: Store, content: dict[str, Any]) -> None:
        store.write(NAME, (json.dumps(content, indent=2) + "\n").encode())

    def _compare(self, store: Store) -> bool:
        """With what the first start of the run wrote down; writes it where nothing is. For worker 0."""
        try:
            theirs = json.loads(store.read(NAME))
            if "exact" not in theirs:
                raise ValueError("lacks what this version writes")
        except MissingObjectError:
            weights = Path(self._config.train.init_from) if self._config.train.init_from else None
            if weights:  # before the run's name is taken for these weights
                huggingface.check(weights, self._config.model)
            self._keep_tokenizer(store, weights)
            self.write(store)
            return False
        except ValueError as error:
            raise HopelessError(
                f"{store.url}/{NAME}: damaged, or by another version of the trainer: {error}\n"
                "    fix: give the new run another --name, or continue with that version"
            ) from None
        self._written |= {key: theirs[key] for key in ("generation", "extended") if key in theirs}
        if self._extend and self._extends(theirs["exact"]):
            # The rest as it was: what the mesh changes is written once its losses are forgotten.
            self._store_record(store, {**self._written, "rounding": theirs["rounding"]})
        else:
            refuse_other(store, theirs["exact"], self._written["exact"])
        return bool(theirs["rounding"] != self._written["rounding"])

    def _extends(self, theirs: dict[str, Any]) -> bool:
        """Whether this start only asks for more steps; then that is noted, for whoever reads the losses."""
        differs = changes(theirs, self._written["exact"])
        if [key for key, _, _ in differs] != [_STEPS] or differs[0][2] < differs[0][1]:
            return False
        (_, was, now), earlier = differs[0], self._written.get("extended", [])
        self._written["extended"] = [*earlier, {"from": was, "to": now}]
        print(f"extended from {was} to {now} steps; the learning rate follows their schedule from here on")
        return True

    def _keep_tokenizer(self, store: Store, weights: Path | None) -> None:
        """What an export needs, besides the checkpoint, to be of use; see `model/generation.py`."""
        manifest, length = self._dataset.manifest, self._config.data.sequence_length
        known = Generation.of_run(manifest.begin_of_document, manifest.end_of_document, length, weights)
        self._written["generation"] = known.content()
        for folder in (self._dataset.folder, weights):  # tokens of version 2 have none beside them
            file = folder / generation.TOKENIZER if folder else None
            if not file or not file.is_file():
                continue
            if hashlib.sha256(file.read_bytes()).hexdigest() == manifest.tokenizer_sha256:
                for path in (file, file.with_name(generation.SETTINGS)):
                    if path.is_file():
                        store.write(f"{TOKENIZER}/{path.name}", path.read_bytes())
                return


def refuse_other(store: Store, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Ends a start with other settings than those that the run in `store` was begun with.

    Raises:
        HopelessError: naming each that changed.
    """
    if changed := changes(theirs, mine):
        output = "; ".join(f"{key} was {was}, is {now}" for key, was, now in changed)
        fix = "give the new run another --name, or put the old settings back"
        if [key for key, _, _ in changed] == [_STEPS] and changed[0][2] > changed[0][1]:
            fix = f"--extend continues it to {changed[0][2]} steps, on their schedule; or give another --name"
        raise HopelessError(f"{store.url}: begun with other settings: {output}\n    fix: {fix}")


def changes(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The key paths at which two trees differ, with both values."""
    before, after = _flat(was), _flat(now)
    keys = sorted(before.keys() | after.keys())
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
