"""Networks that the paper's experiments use; any nn.Module classifier will do in their place."""

from greedy_ensembles.models.mlp import MLP

__all__ = ["MLP"]
