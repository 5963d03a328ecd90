"""What a search found, drawn: memory against speed."""

from collections.abc import Sequence
from pathlib import Path

from workload.errors import WorkloadError
from workload.preflight.search import Candidate
from workload.preflight.slices import CHIP, GIB
from workload.preflight.verdict import MARGIN


def draw(found: Sequence[Candidate], path: Path, title: str) -> None:
    """Writes a picture of the candidates that compiled.

    Raises:
        WorkloadError: matplotlib isn't installed, or the file can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise WorkloadError("--plot needs matplotlib\n    fix: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for one in found:
        if one.verdict is None or one.verdict.prediction is None:
            continue
        slow, likely, fast = one.verdict.prediction.tokens_per_s_per_chip
        size = one.verdict.compiled.hbm_bytes / GIB
        color = {"yes": "tab:green", "uncertain": "tab:orange", "no": "tab:red"}[one.verdict.fits]
        axes.errorbar(size, likely, yerr=[[likely - slow], [fast - likely]], fmt="o", color=color, capsize=3)
        label = f"{one.examples} a chip, {' '.join(one.config.compute.remat)}"
        axes.annotate(label, (size, likely), xytext=(6, 4), textcoords="offset points", fontsize=7)
    limit = CHIP.hbm_bytes / GIB
    axes.axvline(limit, color="black", linewidth=1, label=f"{limit:.2f} GiB, all of a chip's memory")
    axes.axvline(MARGIN * limit, color="gray", linewidth=1, linestyle="--", label=f"{MARGIN:.0%} of it")
    axes.set(xlabel="GiB a chip", ylabel="tokens/s/chip, predicted", title=title)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise WorkloadError(f"--plot {path}: can't be written: {error}") from error
