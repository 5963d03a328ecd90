"""Every service, driven from birth to deletion by its official client, in one body for all."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound
from googleapiclient.errors import HttpError
from official import OWNER, RefusedError, description
from row import IAM, Row
from rows import ROWS
from services_front import Services

READER = "reader@example.com"
_EXCEPTIONS = {400: BadRequest, 403: Forbidden, 404: NotFound, 409: Conflict}
_INPUT_ONLY = ("initializeParams",)
_numbers = itertools.count()


def refusal(*codes: int, run: Any) -> RefusedError:
    """The refusal by the client's own exception for one of these codes."""
    with pytest.raises(RefusedError) as caught:
        run()
    assert caught.value.code in codes, caught.value
    assert issubclass(caught.value.kind, (HttpError, _EXCEPTIONS[caught.value.code]))
    return caught.value


def filled(body: Any, id_: str) -> Any:
    """A body with `{id}` replaced."""
    if isinstance(body, dict):
        return {key: filled(value, id_) for key, value in body.items()}
    if isinstance(body, list):
        return [filled(value, id_) for value in body]
    return body.replace("{id}", id_) if isinstance(body, str) else body


def holds(shown: Any, sent: Any) -> bool:
    """Return True if the answer has all that was sent: numbers by their text, names by their ends."""
    if isinstance(sent, dict):
        return isinstance(shown, dict) and all(
            holds(shown.get(key), value) for key, value in sent.items() if key not in _INPUT_ONLY
        )
    if isinstance(sent, list):
        return len(shown) == len(sent) and all(map(holds, shown, sent))
    return isinstance(sent, bytes) or str(shown) == str(sent) or str(shown).endswith(f"/{sent}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.method)
def test_a_resource_lives_as_at_google(services: Services, row: Row) -> None:
    client = row.make(services, OWNER)
    ids = [f"it-{next(_numbers)}" for _ in range(2)]
    names = [client.create(row.parent, id_, filled(row.body, id_)) for id_ in ids]
    name = names[0]
    assert holds(client.get(name), filled(row.body, ids[0]))

    if "name" in row.absent:
        assert len(set(names)) == 2
    else:
        refusal(409, run=lambda: client.create(row.parent, ids[0], filled(row.body, ids[0])))
        refusal(400, run=lambda: client.create(row.parent, "9 Bad!", filled(row.body, "bad")))
    if row.wrong:
        wrong = filled({**row.body, **row.wrong} if "name" in row.absent else row.wrong, "wrong")
        refusal(400, run=lambda: client.create(row.parent, "wrong", wrong))
    if row.missing:
        lost = filled({**row.body, **row.missing}, "lost")
        refusal(400, 404, run=lambda: client.create(row.parent, "lost", lost))

    pages = client.pages(row.parent, 1)
    last = [item.rpartition("/")[2] for item in itertools.chain(*pages)]
    assert {name.rpartition("/")[2] for name in names} <= set(last)
    assert len(last) == len(set(last))
    assert "nextPageToken" in row.absent or all(len(page) <= 1 for page in pages)

    if "patch" not in row.absent | row.unserved:
        client.update(name, row.change, filled(row.body, ids[0]))
        if not row.method.startswith("container."):
            assert holds(client.get(name), {**row.body, **row.change})
            assert not holds(client.get(names[1]), row.change)

    if "getIamPolicy" not in row.absent:
        assert client.policy(name) == []
        client.set_policy(name, row.viewer, f"user:{READER}")
        assert client.policy(name) == [(row.viewer, [f"user:{READER}"])]
        reads = re.sub(r"create$", "get", row.needed)
        reader = row.make(services, READER)
        assert reader.held(name, [reads, row.needed]) == [reads]
        assert reader.get(name)
        refusal(403, run=lambda: reader.get(names[1]))

    if "delete" not in row.absent:
        for entry in names:
            client.delete(entry)
        refusal(404, run=lambda: client.get(name))
        refusal(404, run=lambda: client.delete(name))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.method)
def test_what_a_service_lacks_is_lacking_at_google(row: Row) -> None:
    """So that a row can't leave out what there is."""
    document = description(row.method.partition(".")[0], row.version)
    resource = document
    for word in row.method.split(".")[1:]:
        resource = resource["resources"][word]
    known = {"create" if verb == "insert" else verb for verb in resource["methods"]}
    if "update" in known:
        known.add("patch")
    answer = document["schemas"][resource["methods"]["list"]["response"]["$ref"]]["properties"]
    lacking = {"create", "get", "patch", "delete", *IAM} - known | {"nextPageToken"} - answer.keys()
    assert row.absent - {"name"} == lacking
