"""A job from the words of a user: which pools it may run on, what it costs, what is refused."""

import shlex
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.layers.queue.jobs.jobset import jobset
from infra.layers.queue.jobs.submission import JobRequest, Submission, SubmissionError, submission
from infra.settings.schema import Settings
from infra.settings.variables import Variables
from rehearsal.kubernetes.node.volumes import expanded
from tests.infra.layers.queue.test_queue_layer import SETTINGS
from tests.infra.recording import BASE, parsed

IMAGE = "us-docker.pkg.dev/my-project/images/base@sha256:" + "0" * 64
TWO: list[dict[str, Any]] = [
    {"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b", "spot": True, "count": 2},
    {"name": "big", "acceleratorType": "v6e-256", "zone": "us-east5-b"},
]
EXTRACT = "extract qwen2.5-0.5b.toml --stream gs://b/streams"
SINGLE = [{"name": "single", "acceleratorType": "v6e-8", "zone": "us-east5-b", "count": 2}]


def settings(**changes: Any) -> Settings:
    values = {**BASE, **SETTINGS, "queue:image": IMAGE, "gke:podsRange": "192.168.0.0/18",
              "gke:servicesRange": "192.168.80.0/20", **changes}  # fmt: skip
    known = {key: value for key, value in values.items() if value is not None}
    return parsed(known)


def submit(run: str = "train tiny.toml", pools: Any = None, **more: Any) -> Submission:
    changes = {key: more.pop(key) for key in list(more) if ":" in key}
    request = JobRequest(**{"team": "vision", "program": shlex.split(run), **more})
    return submission(settings(**{"gke:tpuPools": pools or SETTINGS["gke:tpuPools"], **changes}), request)


def worker(item: Submission) -> dict[str, Any]:
    pod = jobset(item.job)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return dict(pod["containers"][0], volumes=pod["volumes"], selector=pod["nodeSelector"])


def notes(item: Submission) -> dict[str, str]:
    """Annotations of the workers' pods."""
    template = jobset(item.job)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return dict(template["metadata"]["annotations"])


def test_without_a_choice_it_runs_on_the_only_kind_of_pool() -> None:
    item = submit()
    assert (item.job.name, item.job.hosts, item.job.chips_per_host, item.job.slices) == (
        "train-tiny",
        4,
        4,
        1,
    )
    assert item.hourly == pytest.approx(16 * 1.4033)
    assert item.reason == "1 x v6e-16 (4x4, 4 hosts of ct6e-standard-4t) in us-east5-b: 1 such pool"


def test_a_multislice_job_pays_for_all_of_its_slices() -> None:
    assert submit(pools=TWO, size="v6e-16", slices=2).hourly == pytest.approx(2 * (submit().hourly or 0))


@pytest.mark.parametrize(("given", "restarts"), [({}, 4), ({"queue:restarts": 0}, 0)])
def test_how_often_a_job_is_restarted_is_a_setting(given: dict[str, int], restarts: int) -> None:
    assert jobset(submit(**given).job)["spec"]["failurePolicy"]["maxRestarts"] == restarts


@pytest.mark.parametrize("words", [{"size": "v6e-256"}, {"size": "16x16"}, {"pool": "big"}])
def test_a_pool_is_chosen_by_size_or_by_name(words: dict[str, str]) -> None:
    assert submit(pools=TWO, **words).job.hosts == 64


def test_a_job_on_pools_that_scale_is_placed_by_jobset() -> None:
    flex = [{"name": "flex", "acceleratorType": "v6e-16", "zone": "us-east5-b", "flexStart": True}]
    pair = [*flex, {"name": "train", "acceleratorType": "v6e-16", "zone": "us-east5-b"}]
    with pytest.raises(SubmissionError, match="--pool = nothing"):
        submit(pools=pair)
    for pool, keys in (
        ("flex", ["alpha.jobset.sigs.k8s.io/exclusive-topology"]),
        ("train", ["kueue.x-k8s.io/podset-required-topology"]),
    ):
        template = jobset(submit(pools=pair, pool=pool).job)["spec"]["replicatedJobs"][0]["template"]
        result = (
            template.get("metadata", {}).get("annotations", {})
            | template["spec"]["template"]["metadata"]["annotations"]
        )
        assert [key for key in result if "topology" in key] == keys


def test_a_pod_finds_what_a_host_finds() -> None:
    item = worker(submit())
    assert {e["name"]: e["value"] for e in item["env"] if "value" in e} == {
        "JOB_SLICES": "1",
        "JOB_HOSTS": "4",
        "TPU_NAME": "vision-train-tiny",
        "ACCELERATOR_TYPE": "v6e-16",
        "TPU_ZONE": "us-east5-b",
        "TPU_PROVISIONING": "spot",
        "CHECKPOINT_BUCKET": "my-project-checkpoints",
        "CHECKPOINT_DIR": "/mnt/checkpoints/jobs/vision/train-tiny",
        "CHECKPOINT_URL": "gs://my-project-checkpoints/jobs/vision/train-tiny",
        "STEPS_BUCKET": "my-project-checkpoints-steps",
        "DATA_DIR": "/mnt/data",
        "TPU_BUNDLE": "ab" * 32,
    }
    assert item["volumeMounts"] == [
        {"name": "checkpoints", "mountPath": "/mnt/checkpoints"},
        {"name": "data-training-data-us-east5-b", "mountPath": "/mnt/data", "readOnly": True},
    ]
    assert [v["persistentVolumeClaim"]["claimName"] for v in item["volumes"]] == [
        "checkpoints",
        "data-training-data-us-east5-b",
    ]
    assert item["selector"]["topology.kubernetes.io/zone"] == "us-east5-b"
    assert notes(submit())["gke-gcsfuse/volumes"] == "true", (
        "GKE adds the bucket's sidecar to such pods alone"
    )


def test_pods_name_zone_and_way_of_payment_where_all_pools_agree() -> None:
    def names(*pools: Any) -> set[str]:
        env = {entry["name"] for entry in worker(submit(pools=pools, **{"data:snapshot": None}))["env"]}
        return env & {"TPU_ZONE", "TPU_PROVISIONING"}

    train = TWO[0]
    assert names({**train, "count": 2}) == {"TPU_ZONE", "TPU_PROVISIONING"}
    assert names(train, {**train, "name": "b", "spot": False}) == {"TPU_ZONE"}
    assert names(train, {**train, "name": "b", "zone": "us-east5-a"}) == {"TPU_PROVISIONING"}


@pytest.mark.parametrize(("install", "command"), [
    ("bundle", ["job", "workload", "goodput", "gs://b/runs/tiny"]),
    ("image", ["workload", "launch", "--", "workload", "goodput", "gs://b/runs/tiny"]),
])  # fmt: skip
def test_what_a_pod_starts(install: str, command: list[str]) -> None:
    result = worker(submit("goodput gs://b/runs/tiny", **{"queue:install": install}))["command"]
    assert result[-len(command) :] == command
    assert result[:2] == (["bash", "-c"] if install == "bundle" else ["workload", "launch"])


@pytest.mark.parametrize("install", ["bundle", "image"])
def test_a_pods_variables_hold_references_and_its_program_starts_with_the_values(install: str) -> None:
    given = Variables({"A": "1"}, ("hf-token@2",))
    item = worker(submit(variables=given, **{"queue:install": install}))
    env = {entry["name"]: entry.get("value") for entry in item["env"]}
    assert (env["A"], env["TPU_SECRETS"]) == ("1", "hf-token@2:HF_TOKEN")
    assert item["command"][-8:-2] == ["workload", "secrets", "--", "workload", "train", "tiny.toml"]
    assert "secrets" not in worker(submit(variables=Variables({"A": "1"})))["command"]


def test_every_job_has_the_variables_of_the_settings_and_its_own_come_before_them() -> None:
    own = {"storage:secrets": ["key"], "queue:env": {"A": "1", "B": "1"}, "queue:secrets": ["key"]}
    item = submit(variables=Variables({"B": "2"}, ("key", "other")), **own)
    env = {entry["name"]: entry.get("value") for entry in worker(item)["env"]}
    assert (env["A"], env["B"], env["TPU_SECRETS"]) == ("1", "2", "key@latest:KEY other@latest:OTHER")
    assert item.variables.secrets == ("key", "other"), "all are looked up"
    with pytest.raises(SubmissionError, match='--secret = "A" twice'):
        submit(variables=Variables({}, ("A=other",)), **own)


@pytest.mark.parametrize(("words", "run"), [
    ({"name": "v2"}, "vision-v2"),
    ({"name": "v2", "team": "speech"}, "speech-v2"),
    ({}, "vision-train-tiny"),
    ({"run": "train tiny.toml --name mine"}, "mine"),
    ({"run": "train tiny.toml --name=mine"}, "mine"),
    ({"run": EXTRACT, "pools": SINGLE}, "vision-extract-qwen2-5-0-5b"),
    ({"run": f"{EXTRACT} --name mine", "pools": SINGLE}, "mine"),
    ({"run": "goodput gs://b/runs/tiny"}, ""),
])  # fmt: skip
def test_jobs_of_one_config_write_a_run_each_unless_it_is_named(words: dict[str, Any], run: str) -> None:
    item = submit(**words)
    assert item.run == run
    if words.get("run", "").find("--name") < 0:
        assert worker(item)["command"][-2:] == (["--name", run] if run else ["goodput", "gs://b/runs/tiny"])


def test_a_config_whose_own_name_is_no_runs_is_run_by_the_jobs_name() -> None:
    item = submit("train MyConfig.toml", name="v2", **{"tpu:code": "code"})
    assert item.run == "vision-v2"
    with pytest.raises(SubmissionError, match=r'-- PROGRAM = "train MyConfig.toml --bogus": --bogus isn'):
        submit("train MyConfig.toml --bogus", name="v2", **{"tpu:code": "code"})


def test_a_job_takes_no_name_with_which_its_run_would_be_another_teams() -> None:
    teams = {"queue:teams": [{"name": "vision"}, {"name": "vision-eu"}],
             "gke:namespaces": ["vision", "vision-eu"]}  # fmt: skip
    with pytest.raises(SubmissionError, match='"eu-x": runs of vision are vision-JOB, and vision-eu-… are'):
        submit(name="eu-x", **teams)
    assert submit(name="x", team="vision-eu", **teams).run == "vision-eu-x"
    assert submit(name="eux", **teams).run == "vision-eux"


def test_a_program_of_ones_own_is_started_as_it_is() -> None:
    assert worker(submit("python train.py --lr 3e-4", **{"tpu:code": "training"}))["command"][3:] == [
        "job",
        "python",
        "train.py",
        "--lr",
        "3e-4",
    ]


def test_a_pod_gets_the_words_that_were_typed_and_kubernetes_fills_nothing_into_them() -> None:
    typed = ["bash", "-c", "echo $$ $(DATA_DIR) $DATA_DIR $$(date) a$ $$$$"]
    shown = worker(submit(shlex.join(typed)))["command"]
    assert [expanded(word, {"DATA_DIR": "/mnt/data"}) for word in shown][-3:] == typed


TENSORBOARD = {
    "storage:tensorboard": "projects/my-project/locations/us-east5/tensorboards/1",
    "gke:workloadRoles": ["roles/logging.logWriter", "roles/aiplatform.user"],
}


def test_curves_are_copied_to_vertex_only_where_the_settings_say_so() -> None:
    own = "train tiny.toml --set observe.experiment=mine"
    assert worker(submit(own, **TENSORBOARD))["command"][3:] == [
        "job", "workload", "train",
        "--set", "observe.tensorboard=projects/my-project/locations/us-east5/tensorboards/1",
        "--set", "observe.experiment=vision",
        "tiny.toml", "--set", "observe.experiment=mine", "--name", "vision-train-tiny",
    ]  # fmt: skip
    for second in (
        submit(),
        submit("goodput gs://b/runs/tiny", **TENSORBOARD),
        submit("train tiny.toml --dir /tmp", **TENSORBOARD),
    ):
        assert not [word for word in worker(second)["command"] if "observe" in word]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"team": "visoin"},
        'TEAM = "visoin": one of queue:teams: vision, speech\n    fix: perhaps vision',
    ),
    ({"team": "research"}, "fix: add it to queue:teams, then tpu up dev queue"),
    ({"priority": "urgent"}, ": one of low, medium, high"),
    (
        {"priority": "high", "queue:teams": [{"name": "vision", "priorities": ["low", "medium"]}]},
        '"high": one of low, medium\n    fix: write --priority low',
    ),
    ({"name": "Train"}, "1 to 40 lowercase letters"),
    ({"name": "x" * 41}, "1 to 40 lowercase letters"),
    ({"run": "rm -rf /"}, "a command of the workload (activations, checkpoints"),
    ({"queue:image": None}, ": a job runs in an image"),
    ({"image": "python:3.11"}, "an image with its digest"),
    ({"tpu:bundle": None}, "fix: tpu publish dev, or queue:install: image"),
    ({"size": "8x8"}, "the nearest is --pool train (v6e-16)"),
    ({"size": "v6e-128", "pools": TWO}, "the nearest is --pool train (v6e-16)"),
    ({"size": "v6e-16", "zone": "us-east5-a"}, '"v6e-16 us-east5-a"'),
    ({"pool": "huge"}, '--pool = "huge"'),
    ({"pool": "bgi", "pools": TWO}, "the nearest is --pool big (v6e-256)"),
    ({"size": "v6e256", "pools": TWO}, "the nearest is --pool big (v6e-256)"),
    ({"zone": "mars"}, '--zone = "mars"'),
    ({"run": "train tiny.toml --slices 2"}, ": --slices isn't an option of train"),
    ({"run": "train"}, ": train takes one config, not 0"),
    ({"run": "train tiny.toml --name ../x"}, ": a run is called by a-z, 0-9, '-', '_' and '.', not ../x"),
    ({"run": "train tiny.toml --set steps"}, ": --set takes SECTION.KEY=VALUE, not steps"),
    ({"run": "extract qwen2.5-0.5b.toml", "pools": SINGLE}, ": extract takes --stream URL: streams that"),
    (
        {"run": "extract qwen2.5-0.5b.toml --stream gs://b/s --set extract.pointz=3", "pools": SINGLE},
        ": --set extract.pointz isn't a setting of extract",
    ),
    ({"run": "train tiny.toml --set data.path=gs://b/x"}, ": hosts read data.path from gs://my-project-"),
    (
        {"run": "train tiny.toml --set data.path=x", "data:snapshot": None},
        "no data:snapshot makes one\n    fix: tpu data put dev FOLDER, then data.path=gs://my-project-",
    ),
    ({"run": "data prepare --sourze x"}, "--sourze isn't an option of data prepare"),
    ({"run": "train tiney.toml"}, "fix: perhaps tiny.toml"),
    ({"run": "python train.py"}, "the bundle has no train.py\n    fix: tpu:code: and the folder of train.py"),
    ({"pools": TWO}, "a job has slices of one size and machine: v6e-16 (train), v6e-256 (big)"),
    ({"slices": 2}, "1 at most\n    fix: --slices 1"),
    ({"slices": 0}, "1 to 1024"),
    ({"pools": TWO, "size": "v6e-16", "slices": 3}, "2 at most"),
    ({"pools": [{**TWO[0], "count": 0}]}, "fix: add one, then tpu up dev gke"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cant_run_is_refused_before_it_is_submitted(words: dict[str, Any], message: str) -> None:
    with pytest.raises(SubmissionError) as refused:
        submit(**words)
    assert message in str(refused.value)
    assert str(refused.value).startswith("1 problem in the job:")


def test_the_fix_of_an_image_of_docker_hub_is_one_that_nodes_reach() -> None:
    for image in ("debian", f"docker.io/library/debian@sha256:{'0' * 64}"):
        with pytest.raises(SubmissionError, match=r"mirror\.gcr\.io/library/[d…]"):
            submit(image=image)
    assert submit(image=f"mirror.gcr.io/library/debian@sha256:{'0' * 64}").job.image.startswith("mirror.")
    with pytest.raises(SubmissionError, match="fix: copy it to Artifact Registry"):
        submit(image=f"quay.io/a/b@sha256:{'0' * 64}")


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(SubmissionError, match="4 problems in the job"):
        submit("rm -rf /", team="others", priority="now", size="8x8")


def test_extraction_has_slices_of_one_host() -> None:
    with pytest.raises(SubmissionError, match=r"a host extracts alone, on its own chips, and v6e-16"):
        submit(EXTRACT)
    assert submit(EXTRACT, pools=SINGLE, slices=2).job.hosts == 1


def test_without_data_a_pool_is_in_any_zone_of_the_cluster() -> None:
    elsewhere = [{"name": "far", "acceleratorType": "v6e-16", "zone": "us-east5-a"}]
    with pytest.raises(SettingsError, match="jobs read the data from a disk in their zone"):
        submit(pools=elsewhere)
    pool = worker(submit(pools=elsewhere, **{"data:snapshot": None}))
    assert pool["selector"]["topology.kubernetes.io/zone"] == "us-east5-a"
    assert [mount["mountPath"] for mount in pool["volumeMounts"]] == ["/mnt/checkpoints"]
    assert "DATA_DIR" not in {variable["name"] for variable in pool["env"]}
