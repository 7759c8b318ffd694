"""Accuracy and negative log-likelihood against the severity of corruptions (the paper's figure of robustness)."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.report.figure import NORMAL, describe_seeds, entitle, method_styles, new_figure, plain

#: By the name of a method, and then of a figure (accuracy, nll), its estimate at severity 1, 2, ...
Severities = Mapping[str, Mapping[str, Sequence[Estimate]]]
_PANELS = (("accuracy", "accuracy (%)", 100.0), ("nll", "NLL (nats)", 1.0))


def draw_severities(severities: Severities, name: str) -> Figure:
    """Draw both figures side by side, a line for each method with bars of one standard error.

    name : what the corrupted images are, for the caption.
    """
    if not severities:
        raise ValueError("severities must hold at least one method, got none")
    figure = new_figure(height=2.75)
    axes = figure.subplots(1, 2)
    for axis, (field, label, factor) in zip(axes, _PANELS, strict=True):
        for (method, figures), style in zip(severities.items(), method_styles(len(severities)), strict=True):
            estimates = figures[field]
            axis.errorbar(
                range(1, len(estimates) + 1),
                [factor * estimate.mean for estimate in estimates],
                [factor * estimate.error for estimate in estimates],
                color=style.colour,
                marker=style.marker,
                markersize=3.5,
                linewidth=1,
                dashes=style.dashes or (None, None),
                label=method,
            )
            axis.set_xticks(range(1, len(estimates) + 1))
        axis.set(xlabel="severity", ylabel=label)
        plain(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=NORMAL)
    every = [estimate for figures in severities.values() for estimates in figures.values() for estimate in estimates]
    bars = "; bars: one standard error either side" if any(estimate.error for estimate in every) else ""
    entitle(figure, "", f"{name}, {describe_seeds(every)}{bars}.")
    return figure
