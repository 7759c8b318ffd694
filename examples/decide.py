"""From a number to a decision: which inputs to hand to a person, and which classes an input may have."""

import torch
from sklearn.datasets import load_digits

import greedy_ensembles as ge

x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
known = y < 8  # digits 8 and 9 are never seen in training
x = x.float() / 16
train, held_out, test = torch.randperm(int(known.sum()), generator=torch.Generator().manual_seed(0)).split(500)
digits, labels = x[known], y[known]

ensemble = ge.fit(
    lambda: ge.models.MLP(64, (64,), classes=8),
    (digits[train], labels[train]),
    size=4,
    recipe=ge.Recipe(epochs=20),
)
ensemble.calibrate(digits[held_out], labels[held_out], fpr=0.05)

print(f"flagged: {ensemble.flag(digits[test]).float().mean():.0%} of known digits, 5 % allowed")
print(f"flagged: {ensemble.flag(x[~known]).float().mean():.0%} of digits 8 and 9")
sets = ensemble.predict_set(digits[test], alpha=0.05)
held = sets[torch.arange(len(test)), labels[test]].float().mean()
print(f"sets of {sets.sum(dim=1).float().mean():.2f} classes hold the label of {held:.0%}, 95 % asked for")
