"""skorch: a subclass of two methods couples its nets, in pipelines too."""

import torch
from skorch import NeuralNetClassifier

import greedy_ensembles as ge

x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
coupler = ge.Coupler(ge.weighting.Gaussian.from_data(x), size=3, strength=3.0)


class Coupled(NeuralNetClassifier):
    def infer(self, x, **options):
        with coupler.step(self.module_):
            return super().infer(x, **options)

    def get_loss(self, *given, **options):
        return super().get_loss(*given, **options) + coupler.term(self.module_)  # which is 0 in validation


settings = {"criterion": torch.nn.CrossEntropyLoss, "lr": 0.1, "max_epochs": 20, "verbose": 0}
nets = [Coupled(ge.models.MLP, module__inputs=2, **settings) for _ in range(3)]
for net in nets:
    net.fit(x, (x[:, 0] > x[:, 1]).long())
    coupler.add(net.module_)
uncertainty = ge.Ensemble.from_members(net.module_ for net in nets).uncertainty(10 * torch.randn(100, 2))
print(f"mutual information far away: {uncertainty.epistemic.mean():.3f} nats")
