"""Section 4: couplings (one file a method), weighting distributions p*, and the bank of earlier members' outputs."""

from greedy_ensembles.method.bank import Bank
from greedy_ensembles.method.batchnorm import Statistics, frozen_batchnorm, rows_stay_rows, split_batchnorm
from greedy_ensembles.method.coupling import Coupling
from greedy_ensembles.method.greedy import Greedy, diversity_term

#: Every method by name. None: members do not touch (Deep Ensembles), so there is no strength, no p* and no bank.
METHODS: dict[str, type[Coupling] | None] = {"deep": None, "greedy": Greedy}

__all__ = [
    "METHODS",
    "Bank",
    "Coupling",
    "Greedy",
    "Statistics",
    "diversity_term",
    "frozen_batchnorm",
    "rows_stay_rows",
    "split_batchnorm",
]
