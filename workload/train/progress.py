"""Progress of a run: speed, share of the chips' peak, remaining time."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from workload.train import flops
from workload.train.config import Config
from workload.train.optimizer import learning_rates

_WINDOW = 20  # steps in a moving average of the speed


class Progress:
    """Progress numbers for the step log, and lines for the terminal."""

    def __init__(
        self,
        config: Config,
        chips: int,
        device_kind: str,
        clock: Callable[[], float] = time.monotonic,
        parameters: int = 0,
    ):
        self._config, self._chips, self._clock = config, chips, clock
        self._flops = flops.model_flops(config.model, config.data.sequence_length, parameters)
        self._peak = flops.PEAK_TFLOPS.get(device_kind)
        self._ends: deque[tuple[int, float]] = deque(maxlen=_WINDOW + 1)
        self._rates = learning_rates(config)
        self._printed = 0.0

    def begin(self, step: int) -> None:
        """Begin to measure after `step`."""
        self._ends.clear()
        self._first = step

    def did(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the numbers of a finished step; print a line every few seconds."""
        self._ends.append((step, self._clock()))
        numbers: dict[str, Any] = {
            "gradient_norm": metrics["gradient_norm"],
            "learning_rate": float(self._rates[step - 1]),
        }
        (first, begun), (last, ended) = self._ends[0], self._ends[-1]
        if last > first and ended > begun:
            step_s = (ended - begun) / (last - first)
            tokens = self._config.train.batch_size * self._config.data.sequence_length
            numbers |= {"step_s": step_s, "tokens_per_s_per_chip": tokens / step_s / self._chips}
            if self._peak:
                shares = flops.mfu(self._flops, numbers["tokens_per_s_per_chip"], self._peak)
                numbers |= {f"mfu_{name}": share for name, share in shares.items()}
            numbers["left_s"] = (self._config.train.steps - step) * step_s
        if ended > self._printed + 5 or step == self._config.train.steps:
            self._printed = ended
            print(_line(step, self._config.train.steps, metrics["loss"], numbers), flush=True)
        return numbers


def _line(step: int, steps: int, loss: float, numbers: Mapping[str, Any]) -> str:
    parts = [f"step {step}/{steps}", f"loss {loss:.4f}", f"lr {numbers['learning_rate']:.2e}"]
    if "step_s" in numbers:
        parts += [f"{numbers['step_s']:.3g} s/step", f"{numbers['tokens_per_s_per_chip']:,.0f} tokens/s/chip"]
        parts.append(f"{numbers['left_s'] / 60:.1f} min left")
    shares = [f"{share:.1%} {name[4:]}" for name, share in numbers.items() if name.startswith("mfu_")]
    parts += [f"MFU {', '.join(shares)}"] if shares else []
    return "  ".join(parts)
