"""Verdict on a run on a slice: fit, speed, price and risk."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workload.preflight import roofline
from workload.preflight.compiler import Compiled
from workload.preflight.roofline import Method, Prediction, Size
from workload.preflight.slices import CHIP, GIB, PRICES_READ, Price, Slices
from workload.train.config import Config
from workload.train.interval import best_interval_s

MARGIN = 0.95  # of a chip's memory: the compiler's sum omits programs beside the step
# Writes of a machine to a bucket, GB/s: cautious, and the most in gcsfuse's own benchmarks on a machine
# with a 200 Gbit/s card (docs/internals/benchmarks.md of gcsfuse 3.4.3).
HOST_WRITE_GB_PER_S = (1.0, 4.6)


@dataclass(frozen=True)
class Risk:
    """Cost of preemptions.

    Attributes:
        save_s: duration of a checkpoint, cautious and best.
        notice: yes, no or perhaps: a save fits into the notice.
        interval_s: between saves, as the run will choose it.
        interval_reason: its binding rule.
        goodput: expected share of productive time, 0 to 1.
        recovery_s: assumed, from a preemption until the run resumes.
    """

    save_s: tuple[float, float]
    notice: str
    interval_s: float
    interval_reason: str
    goodput: float
    recovery_s: float


@dataclass(frozen=True)
class Money:
    """US dollars; None if the price is unknown."""

    an_hour: float | None
    a_billion_tokens: float | None
    a_run: float | None


@dataclass(frozen=True)
class Verdict:
    """Result of preflight."""

    slices: Slices
    config: Config
    fits: str  # yes, no, uncertain
    reason: str
    compiled: Compiled
    prediction: Prediction | None
    risk: Risk
    price: Price
    money: Mapping[str, Money]
    method: Method

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.compiled.parameters or self.config.decoder.parameters()

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON; sizes in bytes, times in seconds, prices in US dollars."""
        content = asdict(self)
        content["chips"] = self.slices.chips
        content["hbm_bytes"] = self.compiled.hbm_bytes
        content["method"] = {
            "shares": self.method.shares,
            "error": roofline.method().error(self.parameters),
            "shares_of_others": self.method.shares_of_others,
            "source": self.method.source,
        }
        if self.prediction:
            content["prediction"]["bounds"]["binding"] = self.prediction.bounds.binding
        content["prices_read"] = PRICES_READ
        return content


def judge(config: Config, slices: Slices, price: Price, compiled: Compiled, recovery_s: float) -> Verdict:
    """Return the verdict on a compiled or refused step.

    Args:
        config: of the run.
        slices: for the run.
        price: in the region.
        compiled: result of the compiler.
        recovery_s: assumed time from a preemption until the run resumes.
    """
    fits, reason = fit(compiled)
    prediction = None
    if not compiled.refused:
        prediction = roofline.predict(
            config, slices, compiled.attention, compiled.collectives, compiled.state_bytes, size(compiled)
        )
    parameters = compiled.parameters or config.decoder.parameters()
    step_s = prediction.step_s[1] if prediction else None
    risk = _risk(config, slices, compiled.state_bytes, recovery_s, step_s)
    money = {
        kind: _money(config, slices, value, prediction, risk.goodput if kind == "spot" else 1.0)
        for kind, value in (("on_demand", price.on_demand), ("spot", price.spot))
    }
    method = roofline.method().for_size(parameters)
    return Verdict(slices, config, fits, reason, compiled, prediction, risk, price, money, method)


def size(compiled: Compiled) -> Size | None:
    """Return the size of a user's module; None for the decoder."""
    return (
        Size(compiled.parameters, compiled.flops, compiled.temporaries_bytes) if compiled.parameters else None
    )


def fit(compiled: Compiled) -> tuple[str, str]:
    """Return yes, no or uncertain for a step's fit on a chip, and the sizes.

    The compiler accepts programs that exceed HBM.
    """
    if compiled.refused:
        return "no", f"the compiler refuses the step: {compiled.refused}"
    share = compiled.hbm_bytes / CHIP.hbm_bytes
    need = f"{compiled.hbm_bytes / GIB:.2f} of {CHIP.hbm_bytes / GIB:.2f} GiB a chip, {share:.0%}"
    if share <= MARGIN:
        return "yes", f"{need}; the safe limit is {MARGIN:.0%}"
    if share <= 1:
        return "uncertain", f"{need}: above {MARGIN:.0%}; programs beside the step may not fit"
    return "no", f"{need}, though it compiles"


def _risk(config: Config, slices: Slices, size: int, recovery_s: float, step_s: float | None) -> Risk:
    hosts = slices.hosts * slices.count
    slow, fast = (size / (hosts * rate * 1e9) for rate in HOST_WRITE_GB_PER_S)
    notice_s = config.checkpoint.notice_s
    notice = "yes" if slow <= notice_s else "no" if fast > notice_s else "perhaps"
    between_s = config.checkpoint.preemption_every_h * 3600
    # Training pauses while the state is copied to the host: PCIe, 32 GB/s a chip.
    stall_s = size / slices.chips / 32e9
    interval_s, reason = best_interval_s(stall_s, slow, between_s)
    if step_s and (every := config.checkpoint.every_steps):
        interval_s, reason = every * step_s, f"checkpoint.every_steps = {every}"
    lost_s = recovery_s + (0.0 if notice == "yes" else interval_s / 2)
    goodput = max(0.0, 1 - lost_s / (between_s + recovery_s)) / (1 + stall_s / interval_s)
    return Risk((slow, fast), notice, interval_s, reason, goodput, recovery_s)


def _money(
    config: Config, slices: Slices, chip_hour: float | None, prediction: Prediction | None, goodput: float
) -> Money:
    if chip_hour is None:
        return Money(None, None, None)
    an_hour = chip_hour * slices.chips
    if prediction is None or not goodput:
        return Money(an_hour, None, None)
    a_token = an_hour / 3600 / (prediction.tokens_per_s_per_chip[1] * slices.chips) / goodput
    tokens = config.train.steps * config.train.batch_size * config.data.sequence_length
    return Money(an_hour, a_token * 1e9, a_token * tokens)
