"""What `ge.fit` takes: inputs of any shape and type, Datasets, and models of every kind."""

import copy
import re

import numpy as np
import pytest
import torch
from tests.training.members import all_same
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.generators import generator
from greedy_ensembles.training.validate import advice_on_scale, as_examples, default_weighting


@pytest.mark.parametrize("shape", [(6,), (3, 4), (1, 6, 6), (2, 3, 2, 2)])
def test_inputs_of_any_shape(shape, quick):
    x = torch.rand(40, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    size = int(np.prod(shape))
    weighting = ge.weighting.Uniform(0, 1, shape)
    ensemble = ge.fit(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, 3)),
        (x, y),
        size=2,
        strength=1.0,
        weighting=weighting,
        **quick,
    )
    assert ensemble.predict_proba(x).shape == (2, 40, 3)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 2)
    )


def test_byte_images_get_the_papers_recipe(quick):
    """uint8 in, wrapped p*, flips and crops, normalisation: all of it runs, and prediction applies it too."""
    x = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    recipe = ge.Recipe(epochs=2, batch_size=16, augment="flip_crop", normalize=((0.5,) * 3, (0.25,) * 3))
    ensemble = ge.fit(convolutional, (x, y), size=2, strength=1.0, recipe=recipe, progress=False, device="cpu")
    assert ensemble.normalize == ((0.5,) * 3, (0.25,) * 3)
    scaled = x.float() / 255
    torch.testing.assert_close(ensemble.predict_proba(x), ensemble.predict_proba(scaled))


def test_floating_images_have_the_p_star_of_bytes(quick):
    """Samples of x / 255 are those of x, over 255, but where rounding falls on the edge of two levels."""
    x = torch.randint(0, 256, (40, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    y = torch.arange(40) % 2
    ours, bytes_ = (default_weighting(None, as_examples((x_, y))).sample(50, generator(0)) for x_ in (x / 255, x))
    assert ((ours * 255 - bytes_).abs() < 0.5).double().mean() > 0.999
    assert 0 <= ours.min() < ours.max() <= 1
    shifted = default_weighting(None, as_examples((x / 64 - 2, y))).sample(50, generator(0))  # in -2 to 255 / 64 - 2
    assert -2 <= shifted.min() < shifted.max() <= 255 / 64 - 2
    assert default_weighting("paper", as_examples((x / 255, y))).overflow == "none"
    ge.fit(convolutional, (x / 255, y), size=2, strength=1.0, **quick)  # without a warning


def test_a_dataset_trains_like_the_arrays_in_it(blobs, make_model, quick):
    class Lazy(torch.utils.data.Dataset):
        def __len__(self):
            return len(blobs[0])

        def __getitem__(self, i):
            return blobs[0][i], int(blobs[1][i])

    arrays = ge.fit(make_model, blobs, size=2, strength=1.0, **quick)
    lazy = ge.fit(make_model, Lazy(), size=2, strength=1.0, **quick)
    assert all_same(arrays, lazy)


def test_tokens_reach_the_model_as_they_are(quick):
    tokens, y = torch.randint(0, 9, (40, 5)), torch.arange(40) % 2

    def model():
        return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 2))

    weighting = ge.weighting.FromData(torch.randint(0, 9, (100, 5)))
    assert len(ge.fit(model, (tokens, y), size=2, strength=1.0, weighting=weighting, **quick)) == 2
    with pytest.raises(ValueError, match=r"x holds torch\.int64, .*default p\*; .*ge\.weighting"):
        ge.fit(model, (tokens, y), size=2, strength=1.0, **quick)


def test_masks_of_minus_infinity_are_no_divergence(blobs, quick):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("mask", torch.full((2, 2), -float("inf")).triu(1))

        def forward(self, x):
            return self.linear(x)

    assert len(ge.fit(Masked, blobs, size=2, strength=1.0, **quick)) == 2


def test_frozen_parameters_stay(blobs, quick):
    torch.manual_seed(3)
    backbone = nn.Linear(2, 8).requires_grad_(False)

    def model():
        return nn.Sequential(backbone, nn.ReLU(), nn.Linear(8, 2))

    before = backbone.weight.clone()
    ensemble = ge.fit(model, blobs, size=2, strength=1.0, **quick)
    assert torch.equal(ensemble[1][0].weight, before)
    assert not torch.equal(ensemble[0][2].weight, ensemble[1][2].weight)


class Transferred(nn.Module):
    """A backbone that came from elsewhere, and a new head."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep
        self.backbone = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def train(self, mode=True):
        super().train(mode)
        if self.keep:
            self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_statistics_of_a_frozen_backbone_are_said_to_move_unless_it_stays_in_eval_mode(blobs, quick, schedule):
    options = {"size": 2, "strength": 1.0, "schedule": schedule, **quick}
    with pytest.warns(UserWarning, match=r"1 BatchNorm .*frozen .*'backbone\.1'.*train\(mode\).*momentum=0"):
        moved = ge.fit(lambda: Transferred(keep=False), blobs, **options)
    assert moved[0].backbone[1].running_mean.any()
    bare = Transferred(keep=False)
    bare.backbone[1] = nn.BatchNorm1d(8, affine=False)  # which has no parameters that would be frozen
    with pytest.warns(UserWarning, match=r"1 BatchNorm .*frozen .*'backbone\.1'"):
        ge.fit(lambda: copy.deepcopy(bare), blobs, **options)
    kept = ge.fit(lambda: Transferred(keep=True), blobs, **options)  # and no warning
    assert not kept[0].backbone[1].running_mean.any()


def test_a_training_that_failed_is_told_and_a_raw_table_is_to_be_standardised(quick):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    x = torch.randn(60, 2, generator=generator) + 2.0 * y[:, None]
    recipe = ge.Recipe(epochs=30, batch_size=16, lr=1e-9)
    options = {"size": 2, "method": "deep", **quick, "recipe": recipe}

    def make_model():
        return ge.models.MLP(2, hidden=(8,))

    with pytest.warns(UserWarning, match="members 1, 2 learnt .*nothing: .*help: another lr.* more epochs$"):
        ge.fit(make_model, (x, y), **options)
    with pytest.warns(UserWarning, match="members 1, 2 learnt .*nothing"):  # weights do not hide it
        ge.fit(make_model, (x, y, torch.linspace(0.5, 2.0, 60)), **options)
    raw = x * torch.tensor([0.01, 4000.0])
    recipe = ge.Recipe(epochs=30, batch_size=16, lr=1e-3, momentum=0.0)
    with pytest.warns(UserWarning, match=r"members? .* exploded: .*helps: .*standardise .*normalize=.*Classifier"):
        ge.fit(make_model, (raw, y), **{**options, "recipe": recipe})
    with pytest.raises(ge.NonFiniteLossError, match=r"Try to standardise the columns of x, .*normalize="):
        ge.fit(make_model, (raw * 1e15, y), **options | {"recipe": ge.Recipe(epochs=6)})
    normalised = ge.Recipe(epochs=30, batch_size=16, normalize=(raw.mean(0), raw.std(0)))
    ge.fit(make_model, (raw, y), **{**options, "recipe": normalised})  # and no warning


@pytest.mark.parametrize(("count", "batches"), [(33, [16, 16]), (34, [16, 16, 2]), (16, [16]), (1, [1])])
def test_a_last_batch_of_one_is_left_out(count, batches, make_model):
    sizes = []

    def augment(batch):
        sizes.append(len(batch))
        return batch

    x, y = torch.randn(count, 2), torch.arange(count) % 2
    recipe = ge.Recipe(epochs=1, batch_size=16, augment=augment)
    ge.fit(make_model, (x, y), size=1, method="deep", recipe=recipe, validation=0, progress=False, device="cpu")
    assert sizes[1:] == batches  # after one trial


def test_numbers_of_numpy_are_numbers(blobs, make_model, quick, tmp_path):
    numpy_kind = {"size": np.int64(2), "strength": np.float32(1.0), "seed": np.int32(3), "validation": np.float64(0.1)}
    recipe = ge.Recipe(epochs=np.int64(2), lr=np.float32(0.1), batch_size=np.int64(16))
    quick = {**quick, "recipe": recipe}
    ge.fit(make_model, blobs, run_dir=tmp_path / "run", **numpy_kind, **quick)
    plain = {"size": 2, "strength": 1.0, "seed": 3, "validation": 0.1}
    assert len(ge.fit(make_model, blobs, run_dir=tmp_path / "run", **plain, **quick)) == 2


def test_a_model_in_double_precision_trains(blobs, quick):
    ensemble = ge.fit(lambda: ge.models.MLP(2, (4,)).double(), blobs, size=2, strength=1.0, **quick)
    assert ensemble.predict_proba(blobs[0]).dtype == torch.float64


def test_an_image_set_is_data_like_its_arrays(tmp_path):
    rng = np.random.default_rng(0)
    images = ge.data.ImageSet(rng.integers(0, 256, (20, 1, 4, 4)).astype(np.uint8), np.arange(20) % 2, "tiny")

    def make_model():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))

    options = {"size": 2, "strength": 1.0, "recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu"}
    ours = ge.fit(make_model, images, **options, run_dir=tmp_path / "run")
    theirs = ge.fit(make_model, (images.images, images.labels), **options)
    assert torch.equal(ours.predict_proba(images.images), theirs.predict_proba(images.images))
    assert ge.load_run(tmp_path / "run").information["data"]["name"] == "tiny"
    with pytest.raises(ValueError, match="tiny has no labels"):
        ge.fit(make_model, images.replace(labels=None), **options)


def test_advice_to_standardise_is_for_tables_that_need_it_and_can_be_followed():
    draw = torch.Generator().manual_seed(0)
    near, constant = torch.rand(50, 2, generator=draw), torch.ones(50, 1)
    assert advice_on_scale(as_examples((near * torch.tensor([0.001, 0.8]), torch.arange(50) % 2)), None) == ""
    x = torch.cat([near * torch.tensor([0.01, 500.0]), constant], dim=1)
    advice = advice_on_scale(as_examples((x, torch.arange(50) % 2)), None)
    assert "standardise the columns of x" in advice
    (recipe,) = re.findall(r"Recipe\(.*\)\)", advice)
    eval(f"ge.{recipe}", {"ge": ge, "x": x})
    eval(f"ge.{recipe}", {"ge": ge, "x": x.numpy()})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor([7]), torch.nan), y), "validation: x holds NaN .*example 7"),
        (lambda x, y: (x, y[:9]), "validation: x and y .*20 examples, y has 9"),
        (lambda x, y: (x[:0], y[:0]), "validation: .*empty"),
        (lambda x, y: (255 * x, y), "x of validation .*: divide them by 255"),
    ],
)
def test_what_is_wrong_with_validation_is_said_of_it(change, told, quick):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(20, 1, 3, 3, generator=draw), torch.arange(20) % 2
    with pytest.raises(ValueError, match=told):
        ge.fit(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), (x, y), size=2, validation=change(x, y), **quick)


def test_examples_with_weights_can_be_predicted_as_they_were_trained_on(blobs, make_model, quick):
    x, y = blobs
    data = (x, y, torch.ones(len(y)))
    ensemble = ge.fit(make_model, data, size=2, **quick)
    assert torch.equal(ensemble.predict_proba(data), ensemble.predict_proba(x))


def test_bits_in_bytes_are_told_of_since_models_would_see_hardly_anything():
    bits = (torch.rand(120, 8, generator=torch.Generator().manual_seed(4)) > 0.5).byte()
    y = bits[:, 0].long()
    options = {"size": 1, "recipe": ge.Recipe(epochs=10, batch_size=16), "progress": False, "device": "cpu"}
    with pytest.warns(UserWarning, match="bytes of 0 and 1 alone"):
        ge.fit(lambda: ge.models.MLP(8, (8,)), (bits, y), **options)
    right = ge.fit(lambda: ge.models.MLP(8, (8,)), (bits.float(), y), **options)
    assert ge.metrics.accuracy(right.predict_proba(bits.float())[0], y) > 0.9
