"""Record of a run's settings: written by its first start, compared by later starts and all workers.

A run must not change its data, model or optimizer, and workers with different settings would sum gradients
of different programs or deadlock.
"""
# mypy: allow-untyped-calls

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from settings_schema import foreign
from workload.data.tokenizers import BESIDE
from workload.data.tokens import Examples
from workload.errors import HopelessError
from workload.model import generation
from workload.model.architecture import Architecture
from workload.model.generation import Generation
from workload.modules import source
from workload.modules.config import ModuleConfig
from workload.runs.errors import MissingObjectError
from workload.runs.location import RECORD, TOKENIZER
from workload.runs.store import Store
from workload.settings import flat
from workload.train.cluster import Cluster
from workload.train.config import Config
from workload.train.sharding import rings
from workload.train.update import TrainStep

_STEPS = "train.steps"
_YOUNGER = ("optax", "qwix", "tokamax")  # of `rounding`; earlier records have none
_OF_FORKS = ("train.init_from", "train.init_with", "base_sha256")  # which each has of its own


def compare_workers(cluster: Cluster, config: Config, tokens_sha256: str) -> None:
    """Check that all workers have the same settings, before any other collective.

    Raises:
        HopelessError: on all workers, naming those that differ from worker 0.
    """
    everything = {"tokens": tokens_sha256, "jaxlib": version("jaxlib"), **asdict(config), **_source(config)}
    settings: dict[str, Any] = json.loads(json.dumps(everything))
    changed = changes(cluster.agree(lambda: settings), settings)
    if unlike := cluster.dissenters(not changed):
        workers = f"worker{'s' if len(unlike) > 1 else ''} {', '.join(map(str, unlike))}"
        how = "; ".join(f"{key} is {was} there, {now} here" for key, was, now in changed)
        raise HopelessError(
            f"{workers} would train another way than worker 0{f': {how}' if how else ''}\n"
            "    fix: start all workers with the same command, bundle and data"
        )


class RunRecord:
    """Record of a run, as this start on this worker sees it."""

    def __init__(
        self, config: Config, step: TrainStep, dataset: Examples, cluster: Cluster, extend: bool = False
    ):
        self._extend = extend
        chip = cluster.devices[0]
        program: dict[str, Any] = {
            "chip": chip.device_kind,
            "slices": step.slices,
            "compiler": f"jaxlib {version('jaxlib')}, {chip.client.platform_version}",
        }
        used = {
            "optax": True,
            "flax": isinstance(config.model, ModuleConfig),
            "qwix": config.lora.rank or config.compute.products == "int8",
            "tokamax": step.attention == "tokamax",
        }
        program |= {package: version(package) for package, uses in used.items() if uses}
        if chip.platform == "tpu":  # chosen by the program: another version may choose otherwise
            program |= {"kernel": step.attention, "rings": [len(ring[0]) for ring in rings(step.mesh)]}
        # Earlier versions kept moments in the dtypes of a module's parameters.
        narrow = any(leaf.dtype != jnp.float32 for leaf in jax.tree.leaves(step.state["params"]))
        moments = {"moments": "float32"} if narrow else {}
        mesh = {name: int(size) for name, size in step.mesh.shape.items()}
        self._config, self._cluster, self._dataset, self._step = config, cluster, dataset, step
        # `exact`: settings that determine the losses; `rounding`: settings that change only their rounding.
        self._written: dict[str, Any] = {
            "exact": {**config.identity(), "tokens": dataset.manifest.sha256, **_source(config), **moments},
            "rounding": {**config.arithmetic(), "mesh": mesh, **program},
        }

    def settle(self, store: Store) -> bool:
        """Check that this start may continue the run in `store`.

        Returns:
            True if mesh or arithmetic differ from the start before.

        Raises:
            HopelessError: `store` holds another run.
            WeightsError: `train.init_from` holds no weights of this model.
        """
        return bool(self._cluster.agree(lambda: self._compare(store)))

    @property
    def forked(self) -> dict[str, Any]:
        """Settings that differ from those of the run in `train.init_from`, as [there, here]."""
        forked: dict[str, Any] = self._written.get("forked", {})
        return forked

    @property
    def extended_from(self) -> int:
        """Steps of the run before its last extension, which gave earlier ones another learning rate."""
        return max((entry["from"] for entry in self._written.get("extended", [])), default=0)

    def write(self, store: Store) -> None:
        """Write the record of this start; on worker 0."""
        self._store_record(store, self._written)

    @staticmethod
    def _store_record(store: Store, content: dict[str, Any]) -> None:
        store.write(RECORD, (json.dumps(content, indent=2) + "\n").encode())

    def _compare(self, store: Store) -> bool:
        """Compare with the stored record, or write it if there is none; on worker 0."""
        try:
            stored = foreign.parse(store.read(RECORD))
            for key in ("exact", "rounding"):
                if not foreign.group(stored, key):
                    raise ValueError(f"lacks the key `{key}`")
            if "module" not in (model := foreign.group(stored["exact"], "model")):
                variants = asdict(Architecture())  # some were added since
                stored["exact"]["model"] = variants | model
            elif accumulate := stored["rounding"].get("accumulate"):  # where older records have it alone
                stored["exact"].setdefault("train", {}).setdefault("accumulate", accumulate)
            for key in self._written["rounding"].keys() & set(_YOUNGER):
                stored["rounding"].setdefault(key, self._written["rounding"][key])
        except MissingObjectError:
            self._identify_base({})
            if self._config.train.init_from:  # before the run's name is bound to these weights
                step, tokenizer = self._step, self._dataset.manifest.tokenizer_sha256
                step.base.fits(self._config, step.given, step.state, tokenizer)
                if was := step.base.exact:
                    differs = changes(was, self._written["exact"])
                    forked = {key: [before, after] for key, before, after in differs if key not in _OF_FORKS}
                    self._written["forked"] = forked
            self._keep_tokenizer(store)
            self.write(store)
            return False
        except ValueError as error:
            raise HopelessError(
                f"{store.url}/{RECORD}: damaged, or written by another version of the trainer: {error}\n"
                "    fix: give the new run another --name, or continue with that version"
            ) from None
        self._identify_base(stored)
        self._written |= {key: stored[key] for key in ("generation", "extended", "forked") if key in stored}
        if self._extend and self._extends(stored["exact"]):
            # Keep the stored rounding: a new mesh is recorded after its old losses are deleted.
            self._store_record(store, {**self._written, "rounding": stored["rounding"]})
        else:
            refuse_other(store, stored["exact"], self._written["exact"])
        return bool(stored["rounding"] != self._written["rounding"])

    def _identify_base(self, stored: dict[str, Any]) -> None:
        """Record the identity of frozen weights, read at each start; files are hashed if they changed."""
        if self._config.lora.rank:
            if beside := self._step.base.beside:
                self._written["base"] = beside
            base = self._step.base.frozen
            files, known = base.files, stored.get("exact", {}).get("base_sha256")
            unchanged = known and files and files == stored.get("base_files")
            self._written["exact"]["base_sha256"] = known if unchanged else base.sha256
            self._written["base_files"] = files

    def _extends(self, stored: dict[str, Any]) -> bool:
        """Record and return True if this start changes only `train.steps`, to more steps."""
        differs = changes(stored, self._written["exact"])
        if [key for key, _, _ in differs] != [_STEPS] or differs[0][2] < differs[0][1]:
            return False
        (_, was, now), earlier = differs[0], self._written.get("extended", [])
        self._written["extended"] = [*earlier, {"from": was, "to": now}]
        print(f"extended from {was} to {now} steps; the learning rate follows the new schedule from here on")
        return True

    def _keep_tokenizer(self, store: Store) -> None:
        """Store the tokenizer and generation settings for exports; see `model/generation.py`."""
        manifest, length = self._dataset.manifest, self._config.data.sequence_length
        base = self._step.base if self._config.train.init_from else None
        of_base = base.generation if base else Generation()
        known = Generation.of_run(manifest.begin_of_document, manifest.end_of_document, length, of_base)
        self._written["generation"] = known.content()
        # Tokens of version 2 have no tokenizer beside them.
        for folder in (self._dataset.folder, getattr(base and base.frozen, "path", None)):
            file = folder / generation.TOKENIZER if folder else None
            if not file or not file.is_file():
                continue
            if hashlib.sha256(file.read_bytes()).hexdigest() == manifest.tokenizer_sha256:
                for path in (file, *(file.with_name(name) for name in BESIDE)):
                    if path.is_file():
                        store.write(f"{TOKENIZER}/{path.name}", path.read_bytes())
                return


def _source(config: Config) -> dict[str, str]:
    """Return the identity of a module's source; empty for the decoder."""
    model = config.model
    return {"source_sha256": source.digest(model.module)} if isinstance(model, ModuleConfig) else {}


def refuse_other(store: Store, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise if this start's settings differ from those that the run in `store` was begun with.

    Raises:
        HopelessError: names each changed setting.
    """
    if changed := changes(stored, given):
        output = "; ".join(f"{key} was {was}, is {now}" for key, was, now in changed)
        fix = "give the new run another --name, or restore the old settings"
        if [key for key, _, _ in changed] == [_STEPS] and changed[0][2] > changed[0][1]:
            fix = f"continue to {changed[0][2]} steps by --extend, or give the new run another --name"
        raise HopelessError(f"{store.url}: begun with other settings: {output}\n    fix: {fix}")


def changes(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the key paths at which two trees differ, with both values."""
    before, after = flat(was), flat(now)
    keys = sorted(before.keys() | after.keys())
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]
