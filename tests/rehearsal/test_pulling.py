"""Images that a node can't pull, as the kubelet reports them."""

from rehearsal.kubernetes.node.pulling import BACK_OFF, ERROR, Puller, waiting

CONTAINERS = [{"name": "manager", "image": "there"}, {"name": "side", "image": "missing"}]


def test_an_image_is_pulled_to_a_node_once_and_an_error_is_tried_again() -> None:
    pulls = []

    def pull(node: str, image: str) -> str:
        pulls.append((node, image))
        return "denied" if image == "missing" else ""

    puller = Puller(pull)
    assert [puller.errors("n", CONTAINERS) for _ in range(2)] == [{"missing": "denied"}] * 2
    assert pulls == [("n", "there"), ("n", "missing"), ("n", "missing")]
    puller.forget("n")
    puller.errors("n", CONTAINERS[:1])
    assert pulls[-1] == ("n", "there")


def test_a_container_waits_for_its_image() -> None:
    states = [status["state"]["waiting"] for status in waiting(CONTAINERS, {"missing": "denied"}, ERROR)]
    assert states == [{"reason": "ContainerCreating"}, {"reason": ERROR, "message": "denied"}]
    *_, late = waiting(CONTAINERS, {"missing": "denied"}, BACK_OFF)
    assert late["state"]["waiting"]["message"] == 'Back-off pulling image "missing": ErrImagePull: denied'
