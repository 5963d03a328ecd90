"""Obstacles to a destroy, as the states of stacks hold them."""

from infra.engine.refusals import against

URN = "urn:pulumi:dev::gke::gcp:storage/bucket:Bucket::"


def test_what_is_protected_stands_against_a_destroy_unless_another_stack_holds_it() -> None:
    resources = [{"urn": f"{URN}{name}", "protect": True} for name in ("a", "b", "c", "d")]
    (problem,) = against("dev", "gke", [*resources, {"urn": f"{URN}read", "protect": True, "external": True}])
    assert str(problem).startswith("gke = protected: a, b, c and 1 more: ")
    assert f"pulumi -C infra/layers/gke state unprotect -s dev '{URN}a'" in str(problem)
