"""Plot of a search's candidates: memory and speed, the best on top."""

from collections.abc import Sequence
from pathlib import Path

from workload.errors import WorkloadError
from workload.preflight.search import Candidate
from workload.preflight.slices import CHIP, GIB
from workload.preflight.verdict import MARGIN


def draw(candidates: Sequence[Candidate], path: Path, title: str) -> None:
    """Write a plot of the candidates that compiled.

    Raises:
        WorkloadError: matplotlib isn't installed, or the file can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise WorkloadError("--plot needs matplotlib\n    fix: pip install matplotlib") from None
    shown = [entry for entry in candidates if entry.verdict and entry.verdict.prediction]
    figure = Figure(figsize=(11, 1.6 + 0.4 * len(shown)), layout="constrained")
    sizes, speeds = figure.subplots(1, 2, sharey=True)
    for row, candidate in enumerate(shown):
        assert candidate.verdict
        assert candidate.verdict.prediction
        slow, likely, fast = candidate.verdict.prediction.tokens_per_s_per_chip
        color = {"yes": "tab:green", "uncertain": "tab:orange", "no": "tab:red"}[candidate.verdict.fits]
        sizes.barh(row, candidate.verdict.compiled.hbm_bytes / GIB, color=color, height=0.6)
        speeds.errorbar(likely, row, xerr=[[likely - slow], [fast - likely]], fmt="o", color=color, capsize=3)
    limit = CHIP.hbm_bytes / GIB
    sizes.axvline(limit, color="black", linewidth=1, label=f"{limit:.2f} GiB, all of a chip's memory")
    sizes.axvline(MARGIN * limit, color="gray", linewidth=1, linestyle="--", label=f"{MARGIN:.0%} of it")
    sizes.set(
        xlabel="GiB a chip", yticks=range(len(shown)), yticklabels=[_label(candidate) for candidate in shown]
    )
    sizes.invert_yaxis()  # the best on top, as in the table
    speeds.set(xlabel="tokens/s/chip, predicted")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise WorkloadError(f"--plot {path}: can't be written: {error}") from error


def _label(candidate: Candidate) -> str:
    compute = candidate.config.compute
    flags = "" if compute.flags == ("auto",) else f", flags {' '.join(compute.flags)}"
    data = "" if candidate.config.mesh.data == 1 else f", data {candidate.config.mesh.data}"
    return f"{candidate.examples} a chip, {' '.join(compute.remat)}{data}{flags}"
