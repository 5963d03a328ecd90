"""Places of members: labels of existing nodes come before the settings."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.ids import RecordedNode
from fleet.members import in_zone, orphans, placed, requested_places
from fleet.model import ObservedNode, View, ZoneView
from infra.slices.nodes import Node
from tests.fleet.conftest import OURS, OWNER, ZONES, fleet, labels


def node(
    member: Node, state: str = "READY", stack: str = OWNER.stack, created_s: float = 0.0
) -> ObservedNode:
    return ObservedNode(member.name, member.zone, state, "1", created_s, labels(member, stack))


def view(*nodes: ObservedNode) -> View:
    zones = {zone: {item.name: item for item in nodes if item.zone == zone} for zone in ZONES}
    return View(0.0, {zone: ZoneView(existing) for zone, existing in zones.items()}, {})


def where(members: list[Node]) -> list[tuple[int | None, str, str]]:
    return [(member.member, member.zone, member.name) for member in members]


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 12), st.integers(1, 6))
def test_new_zones_and_another_count_rename_nobody(before: int, zones: int, after: int, more: int) -> None:
    """Members keep number, name and zone; new ones take names that nobody has."""
    existing = fleet(before, zones)
    result = placed(fleet(after, more), view(*map(node, existing)), OWNER, {})
    assert where(result)[:before] == where(existing)[:after]
    assert len({(item.zone, item.name) for item in result}) == after
    new = [(item.zone, item.name) for item in result[before:]]
    assert not set(new) & {(item.zone, item.name) for item in existing}


def test_what_is_not_there_has_the_name_and_zone_of_the_settings() -> None:
    assert where(placed(fleet(4), view(), OWNER, {})) == where(fleet(4))


def test_a_creation_that_no_list_shows_yet_is_where_it_was_asked_for() -> None:
    first, *rest = fleet(3)
    result = placed(fleet(3), view(), OWNER, {first.key: ("us-east5-a", "tpu-us-east5-a-4")})
    assert where(result) == [(0, "us-east5-a", "tpu-us-east5-a-4"), *where(rest)]


def test_a_member_in_another_zone_takes_a_name_that_nobody_has_or_is_to_have() -> None:
    members = fleet(4)  # two in each of two zones
    moved = in_zone(members[0], members[1].zone, view(), members, {}, OWNER)
    assert (moved.zone, moved.name, moved.key) == ("us-east1-d", "tpu-us-east1-d-2", members[0].key)
    stranger = ObservedNode("tpu-us-east1-d-2", "us-east1-d", "READY")
    mapping = {"other/0": ("us-east1-d", "tpu-us-east1-d-3")}
    assert (
        in_zone(members[0], "us-east1-d", view(stranger), members, mapping, OWNER).name == "tpu-us-east1-d-4"
    )
    members[2] = replace(members[2], name="tpu-us-central1-b-7")
    assert in_zone(members[2], "us-central1-b", view(), members, {}, OWNER).name == members[2].name, (
        "home again"
    )


def test_a_place_of_a_record_is_no_other_members_while_its_node_is_gone() -> None:
    first, second = fleet(2, 1)
    owner = replace(OWNER, recorded={second.key: RecordedNode(first.zone, first.name, "7")})
    result = placed([first, replace(second, name=first.name)], view(), owner, {})
    assert [item.name for item in result] == ["tpu-us-central1-b-1", first.name]


def test_a_member_whose_place_another_member_has_got_goes_elsewhere() -> None:
    """As of a controller of a part, which doesn't know the record of the former."""
    first, second = fleet(2, 1)
    owner = replace(OWNER, recorded={second.key: RecordedNode(first.zone, first.name, "7")})
    assert requested_places({}, owner, view(node(first))) == {}
    taken = replace(node(first), instance="7")
    assert requested_places({}, owner, view(taken)) == {second.key: (first.zone, first.name)}
    stranger = replace(node(first), labels={})
    assert requested_places({}, owner, view(stranger)) == {second.key: (first.zone, first.name)}


def test_a_name_that_somebody_else_has_is_not_taken() -> None:
    first = fleet(1)[0]
    stranger = ObservedNode(first.name, first.zone, "READY", labels={"environment": "prod", "layer": "tpu"})
    (result,) = placed([first], view(stranger), OWNER, {})
    assert (result.zone, result.name) == (first.zone, "tpu-us-central1-b-1")


def test_a_name_that_was_asked_for_is_not_taken_before_a_list_shows_it() -> None:
    first, second = fleet(2)
    result = placed([first, second], view(), OWNER, {second.key: (first.zone, first.name)})
    assert where(result) == [(0, first.zone, "tpu-us-central1-b-1"), (1, first.zone, first.name)]


def test_a_member_that_another_stack_has_is_left_to_it_and_none_is_made_beside_it() -> None:
    first, moved = fleet(2)
    away = replace(moved, zone="us-east5-a", name="tpu-us-east5-a-0")
    foreign = [node(first, stack="another"), node(away, stack="")]
    assert where(placed(fleet(2), view(*foreign), OWNER, {})) == where([first, away])
    own = node(replace(first, zone="us-east5-b", name="tpu-us-east5-b-0"))
    for state in ("READY", "PREEMPTED"):
        (result, _) = placed(fleet(2), view(*foreign, replace(own, state=state)), OWNER, {})
        assert (result.zone, result.name) == (own.zone, own.name)


def test_labels_of_another_environment_or_without_a_number_make_no_node_a_member() -> None:
    (first,) = fleet(1)
    away = node(replace(first, zone="us-east5-a", name="tpu-us-east5-a-0"))
    for other in ({"environment": "prod"}, {"fleet": "other"}, {"member": "x"}, {"member": ""}):
        strange = replace(away, labels={**away.labels, **other})
        assert placed([first], view(strange), OWNER, {}) == [first]


def test_of_two_nodes_that_are_one_member_the_one_that_lives_then_the_older_is_it() -> None:
    first = fleet(1)[0]
    twin = replace(first, zone="us-east5-a", name="tpu-us-east5-a-0")
    old, young = node(first, created_s=1.0), node(twin, created_s=2.0)
    gone = replace(old, state="PREEMPTED")
    for nodes, it in (
        ([old, young], old),
        ([gone, young], young),
        ([replace(old, created_s=3.0), young], young),
    ):
        (result,) = placed([first], view(*nodes), OWNER, {})
        assert (result.zone, result.name) == (it.zone, it.name)
        assert [orphan.name for orphan in orphans([result], view(*nodes), OWNER)] == [
            item.name for item in nodes if item.name != it.name
        ]


def test_orphans_are_ours_by_label_and_asked_for_by_nobody() -> None:
    members = fleet(2)
    stray = node(fleet(9)[8])
    others = [
        replace(stray, name="a", labels=labels(members[0], "another")),
        replace(stray, name="b", labels={**OURS, "environment": "prod"}),
        replace(stray, name="c", labels={}),
    ]
    assert orphans(members, view(*map(node, members), stray, *others), OWNER) == [stray]


def test_a_named_slice_and_the_slices_of_one_job_are_where_the_settings_say() -> None:
    """A job's slices find one another by the names of the settings."""
    first = fleet(1)[0]
    named = replace(first, member=None, name="train")
    together = replace(first, together=(first.name, "other"))
    elsewhere = node(replace(first, zone="us-east5-a", name="tpu-us-east5-a-9"))
    assert placed([named, together], view(elsewhere), OWNER, {}) == [named, together]
    observednode = ObservedNode("train", first.zone, "READY", labels=OWNER.labels)
    mapping = {"train": ("us-east5-a", "train")}
    assert (
        placed([named], view(observednode), OWNER, {}) == placed([named], view(), OWNER, mapping) == [named]
    )
