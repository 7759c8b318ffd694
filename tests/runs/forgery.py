"""What forges run folders: a small run, and JSON with a right checksum."""

from functools import partial

import torch

import greedy_ensembles as ge
from greedy_ensembles import storage

make_model = partial(ge.models.MLP, 2, hidden=(3,))


def train(folder, size, **options):
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    recipe = ge.Recipe(epochs=2, batch_size=10)
    options = {"strength": 1.0, "recipe": recipe, "progress": False, "device": "cpu", "run_dir": folder} | options
    return ge.fit(make_model, (x, (x[:, 0] > 0).long()), size=size, **options)


def forge(path, **changes):
    """Change fields of a JSON file, and give it the checksum that it then has to have."""
    storage.write_json(path, {**storage.read_json(path), **changes})
