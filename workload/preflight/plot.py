"""What a search found, drawn: memory and speed, the best on top."""

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
    shown = [one for one in found if one.verdict is not None and one.verdict.prediction is not None]
    figure = Figure(figsize=(11, 1.6 + 0.4 * len(shown)), layout="constrained")
    sizes, speeds = figure.subplots(1, 2, sharey=True)
    for row, one in enumerate(shown):
        assert one.verdict
        assert one.verdict.prediction
        slow, likely, fast = one.verdict.prediction.tokens_per_s_per_chip
        color = {"yes": "tab:green", "uncertain": "tab:orange", "no": "tab:red"}[one.verdict.fits]
        sizes.barh(row, one.verdict.compiled.hbm_bytes / GIB, color=color, height=0.6)
        speeds.errorbar(likely, row, xerr=[[likely - slow], [fast - likely]], fmt="o", color=color, capsize=3)
    limit = CHIP.hbm_bytes / GIB
    sizes.axvline(limit, color="black", linewidth=1, label=f"{limit:.2f} GiB, all of a chip's memory")
    sizes.axvline(MARGIN * limit, color="gray", linewidth=1, linestyle="--", label=f"{MARGIN:.0%} of it")
    sizes.set(xlabel="GiB a chip", yticks=range(len(shown)), yticklabels=[_label(one) for one in shown])
    sizes.invert_yaxis()  # the best on top, as in the table
    speeds.set(xlabel="tokens/s/chip, predicted")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise WorkloadError(f"--plot {path}: can't be written: {error}") from error


def _label(one: Candidate) -> str:
    compute = one.config.compute
    flags = "" if compute.flags == ("auto",) else f", flags {' '.join(compute.flags)}"
    data = "" if one.config.mesh.data == 1 else f", data {one.config.mesh.data}"
    return f"{one.examples} a chip, {' '.join(compute.remat)}{data}{flags}"
