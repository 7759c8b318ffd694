"""Deep Ensembles (Lakshminarayanan et al. 2017): members differ by their random numbers alone."""

from torch import Tensor

from greedy_ensembles.method.coupling import Coupling


class Deep(Coupling):
    """Members do not touch: every term is 0."""

    label = "Deep Ensembles"
    sees = "none"

    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return zeros."""
        return live.new_zeros(len(live))
