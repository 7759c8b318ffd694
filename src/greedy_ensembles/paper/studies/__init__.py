"""The studies of the paper, and one that it lacks: a thin file each, which says what is trained for which table."""

from greedy_ensembles.paper.studies import (
    capacity,
    cifar10,
    cifar100,
    default_p_star,
    ensemble_size,
    methods,
    mnist,
    outlier_exposure,
    overhead,
    p_star,
    qualitative,
    robustness,
    svhn,
    two_moons,
)
from greedy_ensembles.paper.study import Study

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        two_moons,
        mnist,
        cifar10,
        cifar100,
        svhn,
        capacity,
        ensemble_size,
        outlier_exposure,
        overhead,
        robustness,
        qualitative,
        p_star,
        default_p_star,
        methods,
    )
}
