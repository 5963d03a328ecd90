"""Reader of an extraction, by document, from a bucket or a folder.

activations = Activations("gs://my-project-checkpoints/extractions/qwen2.5-0.5b")
document = activations["prompts.jsonl:17"]
document["resid_post.12"]        # L x D, bfloat16: only those bytes are read
document.tokens, document.sample
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from views.counts import counted
from workload import command
from workload.activations.shard import OF_SHARDS, SUFFIX, Shard, index
from workload.activations.statistics import Moments
from workload.errors import DataError
from workload.runs.errors import MissingObjectError
from workload.runs.store import Store, open_store

_NAME = re.compile(rf"activations/tpu_(\d+)/shard_(\d+){re.escape(SUFFIX)}")


@dataclass(frozen=True)
class Document:
    """A document of a shard; its tensors are read on access."""

    shard: Shard
    place: int  # in the shard

    @property
    def id(self) -> str:
        """Name."""
        return self.shard.ids[self.place]

    @property
    def sample(self) -> int:
        """Number in the source."""
        return int(self.shard.samples[self.place])

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The ids of the L tokens kept."""
        return self.shard.document(self.place, "tokens")

    @property
    def positions(self) -> NDArray[np.int32]:
        """Their positions in the document."""
        return self.shard.document(self.place, "positions")

    def __getitem__(self, point: str) -> NDArray[Any]:
        """Return the tensor kept at a point: L x the point's axes."""
        return self.shard.document(self.place, point)


class Activations:
    """Committed shards of a run."""

    def __init__(self, url: str, store: Store | None = None):
        """List the shards.

        Raises:
            DataError: there is none.
        """
        self._store = store or open_store(url.rstrip("/"))
        self.names = [name for name in self._store.list("activations/") if name.endswith(SUFFIX)]
        if not self.names:
            rule = "holds no activations/, so it is no extraction"
            fix = "name the folder that holds activations/, e.g. gs://BUCKET/extractions/RUN"
            if "://" not in self.url and not Path(self.url).is_dir():
                rule = "no such folder"
            elif self.run():
                rule, fix = "no shard is committed here yet", "wait until the extraction has stored one"
            raise DataError(f"{self.url}: {rule}\n    fix: {fix}")
        self.indices = [name for name in self._store.list("indices/") if name.endswith(SUFFIX)]
        self._opened: dict[str, Shard] = {}
        self._bounds: dict[str, list[int]] = {}

    @property
    def url(self) -> str:
        """Return the address of the run."""
        return self._store.url

    def shards(self) -> Iterator[Shard]:
        """Iterate over the shards."""
        for name in self.names:
            yield self.open(name)

    def run(self) -> tuple[str, int] | None:
        """Return the sha256 of the run's config.json and its number of streams; None if it can't be read."""
        try:
            raw = self._store.read("config.json")
            return hashlib.sha256(raw).hexdigest(), int(json.loads(raw)["streams"]["count"])
        except (MissingObjectError, ValueError, KeyError, TypeError):
            return None

    def absent(self) -> list[int]:
        """Return the streams of the run that have no shard yet; none where config.json can't be read."""
        run, present = self.run(), {int(path[1]) for name in self.names if (path := _NAME.fullmatch(name))}
        return [stream for stream in range(run[1]) if stream not in present] if run else []

    def partial(self) -> str:
        """Return a warning with the number of shards and streams that are missing; empty if none is."""
        present: dict[int, list[str]] = {}
        for name in self.names:
            if path := _NAME.fullmatch(name):
                present.setdefault(int(path[1]), []).append(name)
        expected = [self.open(names[0]).about.shards - len(names) for names in present.values()]
        missing = [number for number in expected if number > 0]
        of_begun = f"{counted(sum(missing), 'shard')} of {counted(len(missing), 'stream')}" if missing else ""
        without = f"all shards of {counted(len(absent), 'stream')}" if (absent := self.absent()) else ""
        if not (lacking := " and ".join(filter(None, (of_begun, without)))):
            return ""
        return f"{self.url}: lacks {lacking}; `{command('activations', 'verify', self.url)}` names them"

    @property
    def points(self) -> tuple[str, ...]:
        """Names of the points kept."""
        return self.open(self.names[0]).about.points

    def __iter__(self) -> Iterator[Document]:
        """Yield all documents; a tensor that is accessed is read once, for all documents of the shard."""
        for shard in self.shards():
            shard.held = {}
            try:
                for place in range(len(shard.ids)):
                    yield Document(shard, place)
            finally:
                shard.held = None

    def __len__(self) -> int:
        return sum(len(self.ids(name)) for name in self.names)

    def ids(self, name: str) -> Sequence[str]:
        """Return the names of a shard's documents; of a run with indices no shard is read."""
        listing, of_shard = self._listed(name)
        return listing.ids[of_shard]

    def tokens(self, name: str) -> int:
        """Return the number of tokens kept in a shard, alike."""
        listing, of_shard = self._listed(name)
        first, end, _ = of_shard.indices(len(listing.ids))
        return int(listing.offsets[end] - listing.offsets[first])

    def _listed(self, name: str) -> tuple[Shard, slice]:
        """Return the file that lists a shard's documents, and their places in it."""
        if (path := _NAME.fullmatch(name)) and (listed := index(int(path[1]))) in self.indices:
            listing, number = self.open(listed), int(path[2])
            if listed not in self._bounds:
                self._bounds[listed] = listing.read(OF_SHARDS).tolist()
            if 0 < number < len(bounds := self._bounds[listed]):
                return listing, slice(bounds[number - 1], bounds[number])
        return self.open(name), slice(None)

    def __getitem__(self, id: str) -> Document:  # noqa: A002
        """Return a document by its name.

        Raises:
            DataError: no committed shard holds it.
        """
        if id not in self._where:
            fix = "see the names in the shards' ids, and in rejected.jsonl beside the streams"
            if self.partial():
                fix = "wait until it is extracted, or see rejected.jsonl beside the streams"
            raise DataError(f"{self._store.url}: holds no document {id!r}\n    fix: {fix}")
        name, place = self._where[id]
        shard = self.open(name)
        if shard.ids[place : place + 1] != (id,):
            fix = "remove indices/, and start the extraction again, which makes them"
            raise DataError(f"{self._store.url}/{name}: holds other documents than its index\n    fix: {fix}")
        return Document(shard, place)

    def moments(self, point: str) -> Moments:
        """Return the moments of a point over all tokens of all shards."""
        first, *rest = [shard.moments(point) for shard in self.shards()]
        return sum(rest, first)

    @cached_property
    def _where(self) -> Mapping[str, tuple[str, int]]:
        return {
            document: (name, place) for name in self.names for place, document in enumerate(self.ids(name))
        }

    def check(self, name: str) -> tuple[Shard, list[str]]:
        """See `Shard.checked`; may be called from several threads."""
        return Shard.checked(self._store, name)

    def open(self, name: str) -> Shard:
        """Return a shard by its name; its header is read once."""
        if name not in self._opened:
            self._opened[name] = Shard(self._store, name)
        return self._opened[name]
