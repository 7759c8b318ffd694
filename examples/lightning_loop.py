"""Lightning: the four lines with `coupler` in them are all that a module needs."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge

x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
loader = DataLoader(TensorDataset(x, (x[:, 0] > x[:, 1]).long()), batch_size=64, shuffle=True)
coupler = ge.Coupler(ge.weighting.Gaussian.from_data(x), size=3, strength=3.0)


class Member(ge.models.MLP, lightning.LightningModule):
    def training_step(self, batch, _):
        with coupler.step(self):
            logits = self(batch[0])
        return torch.nn.functional.cross_entropy(logits, batch[1]) + coupler.term(self)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
members = [Member(2) for _ in range(3)]
for member in members:
    lightning.Trainer(max_epochs=20, accelerator="cpu", devices=1, **quiet).fit(member, loader)
    coupler.add(member)
uncertainty = ge.Ensemble.from_members(members).uncertainty(10 * torch.randn(100, 2))
print(f"mutual information far away: {uncertainty.epistemic.mean():.3f} nats")
