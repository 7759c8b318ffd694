"""What tests of training ask of members: whether they are the same, and what they were after every epoch."""

import copy

import torch


def same(model, other):
    """Return whether two models have the same weights, bit for bit."""
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def all_same(ensemble, other):
    """Return whether the members of two ensembles have the same weights."""
    return len(ensemble) == len(other) and all(same(a, b) for a, b in zip(ensemble, other, strict=True))


class Recorder:
    """A callback that keeps every member as it was after every epoch."""

    def __init__(self):
        self.events, self.models = [], []

    def __call__(self, event):
        self.events.append(event)
        self.models.append(copy.deepcopy(event.model).eval())

    def of(self, member):
        return [(e, m) for e, m in zip(self.events, self.models, strict=True) if e.member == member]
