"""Start a run on this worker, and end the process whatever happens to the others."""
# mypy: allow-untyped-calls

import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import jax

from workload import processor, slurm
from workload.errors import ConfigError, TakenError, WorkloadError
from workload.host.heartbeat import Heartbeat
from workload.runs import location
from workload.runs.goodput import GoodputRecorder
from workload.runs.lease import Lease
from workload.runs.step_log import StepLog
from workload.runs.store import open_store
from workload.train.cluster import Cluster, Membership, first_line
from workload.train.config import Config
from workload.train.durable import DurableCopies
from workload.train.loop import Run, open_dataset, open_held_out
from workload.train.preemption import taken, watch_metadata
from workload.train.record import compare_workers
from workload.train.uploader import Uploader, hopeless, require_packages

# Of sysexits.h, EX_TEMPFAIL and EX_UNAVAILABLE: failures to systemd, which restarts the job. A JobSet
# restarts for these alone, and for no failure of the job's own (infra/layers/queue/jobs/jobset.py); a job of
# Slurm queues itself again (examples/slurm/).
_ANOTHER_WORKER, _ANOTHER_LOST = 75, 69
# Head start of the failing worker's report over those of its consequences, for the launcher.
_FIRST_S = 5.0
# Variables of workers whose launcher takes 0 for done: of a JobSet, of Slurm.
_LAUNCHED = ("JOB_WORKER", slurm.TASK)

# Variables of hosts and pods that say how a slice is paid for, by their key in the run's status.
_RENTED = {"accelerator": "ACCELERATOR_TYPE", "zone": "TPU_ZONE", "provisioning": "TPU_PROVISIONING"}


def launch(
    config: Config,
    run: str,
    url: str,
    environment: Mapping[str, str],
    heartbeat: Heartbeat,
    extend: bool = False,
) -> int:
    """Train run `run`, stored at `url`.

    With several workers a failure ends the process at once: an orderly exit would wait for workers that
    may be gone.

    Args:
        config: settings of the run.
        run: its name.
        url: its folder.
        environment: of this process.
        heartbeat: reports the progress of this worker.
        extend: continue a run of fewer steps to those of `config`.

    Returns:
        The exit status: 0 when done or saved before a preemption; 75 if another worker was preempted, 69 if
        it was lost without notice. The service then restarts and waits at the barrier for that worker.

    Raises:
        WorkloadError: the settings, the data or the storage is unusable.
    """
    goodput = GoodputRecorder(_process_age_s())
    require_packages(config.observe)
    membership = Membership.from_environment(environment)
    data_dir = environment.get("DATA_DIR")
    dataset, held_out = open_dataset(config, data_dir), open_held_out(config, data_dir)
    cluster = Cluster.join(membership, config.cluster)
    step_log: StepLog | None = None
    lease: Lease | None = None
    try:
        compare_workers(cluster, config, dataset.manifest.sha256)
        store, node = open_store(url), environment.get("TPU_NAME", "")
        lease = Lease(store, node)
        if cluster.leader:
            rented = {key: environment[name] for key, name in _RENTED.items() if environment.get(name)}
            step_log = StepLog(store, run, node, config.train.steps, config.observe.strict, rented)
            goodput.number = len(store.list("goodput/"))
        watch_metadata(environment)
        _cache_compiled(url, environment)
        goodput.seconds["init"] = goodput.elapsed_s
        steps = open_store(location.of_steps(url, environment))
        kept = config.checkpoint
        durable = DurableCopies(store, steps, kept.durable_every_h, kept.keep, kept.keep_best)
        with Uploader(url, config.observe) if cluster.leader else nullcontext():
            try:
                outcome = Run(
                    config,
                    cluster,
                    dataset,
                    store,
                    lease,
                    step_log,
                    goodput,
                    heartbeat,
                    durable,
                    held_out,
                    extend,
                ).go()
            except WorkloadError as error:
                if hopeless(error):  # the last upload needs what is recorded, and the run's state
                    _record_failure(step_log, goodput, error)
                    step_log = None
                raise

            def end() -> None:
                if step_log:
                    print(f"run: {url}\ncurves: tensorboard --logdir {url}/tensorboard", flush=True)
                    step_log.goodput(goodput)
                    step_log.end(outcome.state, outcome.step, outcome.loss)
                lease.release()

            cluster.agree(end)  # before leaving, which has a time limit; worker 0's writes have none
            step_log = None
            cluster.leave()
            heartbeat.end("done" if outcome.state == "done" else None)
        status = exit_status(outcome.state, membership, environment)
    except WorkloadError as error:
        _record_failure(step_log, goodput, error)
        if lease:
            lease.release()
        heartbeat.end(None if isinstance(error, TakenError) else "failed", error)
        if membership.workers == 1:
            raise
        print(f"workload: {error}", file=sys.stderr)
        _end_now(error.exit_code)
    except Exception as error:
        _record_failure(step_log, goodput, error)
        if lease:
            lease.release()
        heartbeat.end("failed", error)
        if membership.workers == 1:
            raise
        if isinstance(error, jax.errors.JaxRuntimeError):
            print(
                f"workload: worker {membership.worker} can't continue; another worker was probably lost:"
                f" {first_line(error)}\n"
                "    fix: restart the job on all workers; it resumes from its newest complete checkpoint",
                file=sys.stderr,
            )
            if "RESOURCE_EXHAUSTED" in str(error):
                _end_now(1)
            time.sleep(_FIRST_S if _launched(environment) else 0)
            _end_now(_ANOTHER_LOST)
        traceback.print_exc()
        _end_now(1)
    return status


def exit_status(state: str, membership: Membership, environment: Mapping[str, str]) -> int:
    """Return the status of a start that ended in `state`; see `launch`."""
    if state != "preempted":
        return 0
    if _launched(environment):
        print("workload: the job resumes when all workers are back", flush=True)
        return _ANOTHER_WORKER
    if membership.workers == 1 or taken(environment):
        return 0
    print("workload: this host wasn't preempted; the job resumes when all workers are back", flush=True)
    return _ANOTHER_WORKER


def _launched(environment: Mapping[str, str]) -> bool:
    return any(name in environment for name in _LAUNCHED)


def _cache_compiled(url: str, environment: Mapping[str, str]) -> None:
    """Cache compiled steps beside the runs, for recreated slices.

    Programs for CPUs depend on the processor: each kind has its own folder.
    """
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        return
    folder = f"{url.rpartition('/runs/')[0]}/compilation-cache"
    if jax.default_backend() == "cpu":
        if not (key := processor.key()):
            return
        folder += f"/cpu-{key}"
    jax.config.update("jax_compilation_cache_dir", folder)


def _process_age_s() -> float:
    """Return the time since this process began, before Python's and JAX's imports."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:  # not Linux
        return 0.0
    return max(0.0, up_s - ticks / os.sysconf("SC_CLK_TCK"))


def _record_failure(step_log: StepLog | None, goodput: GoodputRecorder, error: Exception) -> None:
    if not step_log:
        return
    if isinstance(error, TakenError):
        step_log.close()
        return
    reason = first_line(error)
    if isinstance(error, ConfigError):
        reason = "; ".join(str(problem).splitlines()[0] for problem in error.problems)
    step_log.goodput(goodput)
    step_log.fail(reason, refused=isinstance(error, WorkloadError) and error.exit_code == 2)


def _end_now(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
