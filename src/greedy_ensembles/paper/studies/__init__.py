"""The studies of the paper, and three that it lacks."""

from greedy_ensembles.paper.studies import methods, of_images, two_moons
from greedy_ensembles.paper.study import Study

STUDIES: dict[str, Study] = {study.name: study for study in (two_moons.STUDY, *of_images.STUDIES, methods.STUDY)}
