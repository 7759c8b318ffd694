"""Uncertainty over the plane on two moons, the paper's Figure 2 (`experiments.two_moons`)."""

from pathlib import Path

from greedy_ensembles.paper.study import Study


def _run(folder: Path, progress: bool) -> None:
    from greedy_ensembles.paper import two_moons

    two_moons.run(folder, progress=progress)


STUDY = Study("two-moons", "Two moons", "Figure 2", (), seeds=1, special=_run)
