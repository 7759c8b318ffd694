"""What an engine needs, made by the pieces that `ge.fit` makes it with."""

import torch

import greedy_ensembles as ge
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.method import SCHEDULES, as_coupling
from greedy_ensembles.training.fit import _build
from greedy_ensembles.training.validate import Arguments


def build(make_model, data, **changes):
    """Return the Algorithm of a `ge.fit` with these arguments."""
    options = {
        "size": 3, "method": "greedy", "strength": 3.0, "weighting": None, "distance": "probabilities", "recipe": None,
        "schedule": "concurrent", "seed": 0, "validation": 0.0, "earlier": None, "device": "cpu",
        "targets": "classes", **changes,
    }  # fmt: skip
    coupling, recipe = as_coupling(options["method"]), options["recipe"] or ge.Recipe()
    coupling.strength, coupling.size = options["strength"], options["size"]
    execution = Execution(torch.device(options["device"]), recipe.precision, recipe.deterministic)
    given = {name: options[name] for name in ("size", "weighting", "distance", "targets", "seed", "earlier")}
    asked = Arguments(make_model, coupling=coupling, recipe=recipe, schedule=SCHEDULES[options["schedule"]], **given)
    return _build(asked, data, options["validation"], execution)


class Group:
    """The members of an algorithm that are next after those of a bank of random rows, their step and their epochs."""

    def __init__(self, algorithm, in_bank=0):
        bank = algorithm._draw_bank()
        if bank is not None:
            for number in range(in_bank):
                shape = (len(bank.samples), algorithm.data.classes)
                bank.append(torch.randn(shape, generator=torch.Generator().manual_seed(number)).softmax(dim=1))
        self.algorithm = algorithm
        self.members = algorithm._next_group(in_bank, None)
        self.step = algorithm._step(bank, algorithm.recipe)

    def plan(self):
        """Return the epoch that is next."""
        return self.algorithm._plan(self.members, self.step.bank, self.algorithm.recipe)

    def train(self, engine, epochs=1):
        """Train for some epochs, and return losses and validation scores of each."""
        results = []
        for _ in range(epochs):
            losses = engine.train_epoch(self.plan())
            accuracies, scores = self.algorithm._judge(engine)
            for member, means, accuracy, score in zip(self.members, losses, accuracies, scores, strict=True):
                judged = {"validation_accuracy": accuracy, "validation_score": score}
                member.end_epoch({"loss": means.loss, "seconds": 0.0, **judged})
            results.append((losses, scores))
        return results

    def values(self):
        """Return the tensors of the members' states by name, as they are now."""
        found = {}
        for k, member in enumerate(self.members):
            state = member.state()
            found.update({f"{k} {name}": value.clone() for name, value in state["model"].items()})
            found.update({f"{k} average {index}": value.clone() for index, value in enumerate(state["average"])})
            for index, moments in state["optimizer"]["state"].items():
                found.update({f"{k} {index} {name}": torch.as_tensor(v).clone() for name, v in moments.items()})
        return found


def assert_close(found, expected, **tolerance):
    """Compare tensors by name."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def assert_same_members(ours, theirs, rtol=0.0, atol=0.0):
    """Compare the members of two ensembles; by default, not a bit may differ."""
    assert len(ours) == len(theirs)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        states = ({f"member {number} {name}": v for name, v in m.state_dict().items()} for m in (one, other))
        assert_close(*states, rtol=rtol, atol=atol)
