"""Weights by a name that a person writes: a folder, an id of the Hugging Face hub, a bucket or a run.

llama-3.1-8b/                          folder of Hugging Face weights
gs://my-models/llama-3.1-8b            the same in a bucket; kept in the cache
meta-llama/Llama-3.1-8B                id of the hub; kept in the hub's cache
gs://my-project-checkpoints/runs/first, /tmp/training/runs/first, run:first@400
"""

from pathlib import Path

from settings_schema import foreign
from workload import folders
from workload.arguments import HUB_ID
from workload.errors import WeightsError
from workload.extract.weights import Weights, find
from workload.model.transformers_config import CONFIG
from workload.runs.errors import MissingObjectError
from workload.runs.store import open_store
from workload.train.base import Checkpoint, Folder
from workload.train.past import complete_step


def locate(name: str, step: int | None = None) -> Weights:
    """Return the weights called `name`; `step` selects a run's checkpoint, by default the newest.

    Raises:
        WeightsError: there are none of that name, or they may not be read.
        RunError: the run has no such checkpoint.
    """
    if name.startswith("run:"):
        return find(name if step is None or "@" in name else f"{name}@{step}", None)
    if not name.startswith("gs://") and not Path(name).exists() and HUB_ID.fullmatch(name):
        return Folder(_from_hub(name))
    store = open_store(name)
    try:
        content = foreign.parse(store.read(CONFIG))
    except (MissingObjectError, ValueError) as error:
        fix = "name a folder of Hugging Face weights, or of a run: both hold config.json"
        raise WeightsError(f"{name}/{CONFIG}: can't be read: {error}\n    fix: {fix}") from None
    if "exact" in content:
        return Checkpoint(store, complete_step(store, step))
    return Folder(folders.downloaded(name) if name.startswith("gs://") else Path(name))


def _from_hub(name: str) -> Path:
    """Download a model of the hub into the hub's cache."""
    download = f"hf download {name} --local-dir {name}, then name that folder"
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError:
        fix = f"pip install huggingface_hub; or elsewhere: {download}"
        raise WeightsError(
            f"{name}: no such folder, and the hub's client is absent\n    fix: {fix}"
        ) from None
    patterns = [f"*{ending}" for ending in folders.WEIGHTS]
    ignored = ["*/*", "consolidated*"]  # subfolders, and the same weights for other programs
    try:
        return Path(hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=ignored))
    except errors.GatedRepoError:
        where = f"{constants.ENDPOINT}/{name}"
        message, fix = "is gated: its authors ask for consent", f"agree at {where}, then: hf auth login"
    except errors.RepositoryNotFoundError:
        message = "no such folder, and no such model on the hub"
        fix = "correct the name; for a private one: hf auth login"
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        message, fix = f"can't be downloaded: {line}", f"where the network is: {download}"
    raise WeightsError(f"{name}: {message}\n    fix: {fix}")
