"""The pictures of a section: a radar plot over OOD sets, the curve over lambda_M, and, if asked for, all others."""

from collections.abc import Mapping
from pathlib import Path

from greedy_ensembles.benchmark import Comparison, select
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.paper.curve import areas, can_choose, trials
from greedy_ensembles.paper.study import Section
from greedy_ensembles.report.ablation import draw_ablation
from greedy_ensembles.report.comparison_pictures import draw_areas, write_pictures
from greedy_ensembles.report.figure import write_figure

_AXES = 3  # what a radar plot needs at the least


def write_section_pictures(
    section: Section, comparison: Comparison, folder: Path, images: Mapping[str, Bytes], everything: bool
) -> list[Path]:
    """Write the pictures of a section into a folder, and return their paths.

    everything : curves and histograms of every set, and examples where images are given; they lie in a folder of the
        section's own, and need the scores of single images.
    """
    if everything:
        return write_pictures(comparison, folder / section.stem, images)
    written, labels = [], {method.label for method in comparison.methods}
    if section.curve:
        if sum(case.strength is not None for case in section.cases if section.label(case) in labels) > 1:
            written.append(folder / f"{section.stem}-curve.png")
            _write_curve(section, comparison, written[-1])
    elif len(comparison.first.ood) >= _AXES:
        written.append(folder / f"{section.stem}-radar.png")
        write_figure(draw_areas(comparison), written[-1])
    return written


def _write_curve(section: Section, comparison: Comparison, path: Path) -> None:
    tried, chosen = trials(section, comparison), None
    if can_choose(tried):
        chosen = select(tried).chosen
    inside = comparison.first.in_domain
    name = f"{inside.name} [{inside.note}]" if inside.note else inside.name
    write_figure(draw_ablation(tried, name, inside.images, chosen, areas(section, comparison)), path)
