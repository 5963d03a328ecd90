"""Loss on held-out tokens."""

from collections.abc import Callable

from jax import Array

from workload.data.loader import Loader
from workload.data.tokens import Examples
from workload.errors import ConfigError, Problem
from workload.train.best import Evaluated
from workload.train.config import Config
from workload.train.update import Batch, Params, TrainStep


class Evaluation:
    """Evaluation on a fixed set of held-out batches."""

    def __init__(self, config: Config, step: TrainStep, trained: Examples, held_out: Examples):
        """Check the held-out tokens; compilation waits for the first evaluation.

        Raises:
            ConfigError: the held-out tokens have another tokenizer, or fill less than a batch.
        """
        self._config, self._step, self._held_out = config, step, held_out
        size, problems = config.train.batch_size, []
        if held_out.manifest.tokenizer_sha256 != trained.manifest.tokenizer_sha256:
            rule = f"must use the training tokens' tokenizer, {trained.manifest.tokenizer}"
            fix = "prepare them again with that --tokenizer"
            problems.append(Problem("observe.eval_path", str(held_out.folder), rule, fix))
        if len(held_out) < size:
            rule = f"must hold a batch of {size} examples, not {len(held_out)}"
            problems.append(Problem("observe.eval_path", str(held_out.folder), rule, "hold out more text"))
        if problems:
            raise ConfigError("config", problems)
        self._batches = min(config.observe.eval_batches, len(held_out) // size)
        self._sums: Callable[[Params, Batch], tuple[Array, Array]] | None = None

    def loss(self, params: Params, stops: Callable[[], bool] = lambda: False) -> Evaluated | None:
        """Return the mean loss per target over all batches; every worker must call it.

        None: `stops`, which is called after each batch, returned True.
        """
        if self._sums is None:
            self._sums = self._step.compile_loss()
        step = self._step
        loader = Loader(self._held_out, self._config.train.batch_size, 0, step.by_example, list(step.batch))
        total = count = 0.0
        for number in range(1, self._batches + 1):
            sums = self._sums(params, loader.batch(number))
            total, count = total + float(sums[0]), count + float(sums[1])
            if stops():
                loader.close()
                return None
        loader.close()
        batches = f"{self._batches} x {self._config.train.batch_size} x {self._config.data.sequence_length}"
        return Evaluated(total / max(count, 1.0), f"{self._held_out.manifest.sha256} {batches}")
