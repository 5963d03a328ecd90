"""Google's plain collections, each served from its discovery document and one declarative entry.

To enter a service, put a file into `rehearsal/cloud/services/`; it is found there. All of Pub/Sub's schemas,
but for their revisions, would be:

    ENTRY = Entry(
        "pubsub", ("v1",),
        collections=(Collection("pubsub.projects.schemas", pattern="[a-zA-Z][-\\w.~+%]{2,254}"),),
        package="google.pubsub.v1",
    )

From the document come: method ids and paths, names, the schema, where the id of a new resource is (a `…Id`
parameter, else the server's), what is output only, required or immutable by its description, update masks,
a list's key, paging, filter and order, whether and which kind of operation is answered, the operations' own
methods, the three IAM methods, etags and fingerprints, times and links, permissions
(`pubsub.schemas.create`). The entry adds what isn't there: see `Collection`, `Reference` and `Verb`.

A method of the document that is neither plain nor in `verbs` is answered as not emulated. An entry that
names a method that the document doesn't have, or one that another entry claims, is an EntryError at start.

A hook gets a `Change`: the request, the draft of the resource (`body`), the resource as it was (`old`).

    def publish(change: Change) -> JsonObject:          # verbs={"publish": Verb(publish)}
        change.private.setdefault("messages", []).extend(change.sent["messages"])
        return {"messageIds": …}

It refuses by raising an ApiError in Google's words, or NotEmulatedError. A `Verb` that returns None has
edited `body`, which becomes the resource, at once or when the method's operation ends.
"""

from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.engine import Engine
from rehearsal.cloud.collections.entry import KEEP, REFUSE, Collection, Entry, Reference, Verb
from rehearsal.cloud.collections.masks import fingerprint
from rehearsal.cloud.collections.shape import EntryError, Shape

__all__ = [
    "KEEP",
    "REFUSE",
    "Change",
    "Collection",
    "Engine",
    "Entry",
    "EntryError",
    "Reference",
    "Shape",
    "Verb",
    "fingerprint",
]
