import copy

import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.benchmark import predict


def seen(ensemble):
    return [member.seen for member in ensemble]


def test_they_are_the_logarithm_of_what_the_ensemble_predicts(counting, image_set):
    ensemble = ge.Ensemble([counting(0), counting(1)], normalize=(0.3, 0.2))
    images = image_set(labelled=True, note="partial")
    found = predict(ensemble, images, batch_size=7)
    expected = ensemble.predict_proba(images.images)
    assert np.exp(found.log_probs) == pytest.approx(expected.numpy(), abs=1e-6)
    assert found.log_probs.dtype == np.float32
    assert (found.name, found.note, len(found), found.members) == ("inside", "partial", 40, 2)
    assert (found.labels == images.labels).all()
    assert found.mean_probabilities() == pytest.approx(expected.double().mean(0).numpy(), abs=1e-6)


def test_probabilities_below_single_precision_survive(image_set):
    class Certain(nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 300.0, 100.0]]).repeat(len(x), 1)

    found = predict(ge.Ensemble([Certain()]), image_set(count=2))
    assert found.log_probs[0, 0].tolist() == [-300.0, 0.0, -200.0]
    assert (found.mean_probabilities() > 0).all()  # exp(-300) is 0 in single precision


def test_probabilities_come_in_parts_that_make_the_whole(random_predictions):
    whole = random_predictions(count=50)
    expected = np.exp(whole.log_probs.astype(np.float64))
    parts = list(whole.probabilities(elements=3 * 4 * 7))  # seven images at a time
    assert [part.shape[1] for part in parts] == [7] * 7 + [1]
    assert (np.concatenate(parts, axis=1) == expected).all()


def test_a_member_sees_an_image_once(counting, image_set, tmp_path):
    ensemble, images = ge.Ensemble([counting(0), counting(1)]), image_set()
    first = predict(ensemble, images, cache=tmp_path)
    again = predict(ensemble, images, cache=tmp_path)
    assert seen(ensemble) == [40, 40]
    assert (first.log_probs == again.log_probs).all()
    predict(ensemble, image_set(seed=1), cache=tmp_path)  # other images
    assert seen(ensemble) == [80, 80]
    predict(ensemble, images.replace(name="renamed"), cache=tmp_path)  # the same under another name
    assert seen(ensemble) == [80, 80]


def test_a_grown_ensemble_computes_its_new_members_alone(counting, image_set, tmp_path):
    members, images = [counting(0), counting(1)], image_set()
    predict(ge.Ensemble(members), images, cache=tmp_path)
    grown = ge.Ensemble([*members, counting(2)])
    found = predict(grown, images, cache=tmp_path)
    assert seen(grown) == [40, 40, 40]
    assert (found.log_probs == predict(grown, images).log_probs).all()


@pytest.mark.parametrize("change", ["weight", "buffer", "normalize", "layers"])
def test_what_changes_predictions_makes_new_ones(image_set, tmp_path, change):
    def model(activation):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), activation, nn.Linear(8, 3))

    images = image_set()
    before = predict(ge.Ensemble([model(nn.ReLU())]), images, cache=tmp_path)
    member = model(nn.Tanh() if change == "layers" else nn.ReLU())
    if change == "weight":
        with torch.no_grad():
            member[4].bias[0] += 1
    if change == "buffer":
        member[2].running_mean += 1
    ensemble = ge.Ensemble([member], normalize=(0.5, 0.5) if change == "normalize" else None)
    after = predict(ensemble, images, cache=tmp_path)
    assert (after.log_probs == predict(ensemble, images).log_probs).all()
    assert (after.log_probs != before.log_probs).any()


def test_a_buffer_that_is_not_saved_counts_too(image_set, tmp_path):
    class Shifted(nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.register_buffer("shift", torch.tensor([shift, 0.0, 0.0]), persistent=False)

        def forward(self, x):
            return x.flatten(1)[:, :3] + self.shift

    one, other = (predict(ge.Ensemble([Shifted(shift)]), image_set(), cache=tmp_path) for shift in (0.0, 1.0))
    assert (one.log_probs != other.log_probs).any()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_file_is_computed_again(counting, image_set, tmp_path, damage):
    ensemble, images = ge.Ensemble([counting(0)]), image_set()
    expected = predict(ensemble, images, cache=tmp_path).log_probs
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
    file.write_bytes({"truncated": content[:-9], "flipped": content, "emptied": b""}[damage])
    with pytest.warns(UserWarning, match=rf"computed again: .*{file.name} is damaged"):
        assert (predict(ensemble, images, cache=tmp_path).log_probs == expected).all()
    assert seen(ensemble) == [80]
    predict(ensemble, images, cache=tmp_path)
    assert seen(ensemble) == [80]  # the file is whole again


def test_a_file_of_other_images_under_this_name_is_not_believed(counting, image_set, tmp_path):
    ensemble, images = ge.Ensemble([counting(0)]), image_set()
    predict(ensemble, images, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    predict(ensemble, image_set(seed=1), cache=tmp_path)
    (other,) = set(tmp_path.iterdir()) - {file}
    other.replace(file)
    with pytest.warns(UserWarning, match="computed again: .* other predictions"):
        found = predict(ensemble, images, cache=tmp_path)
    assert (found.log_probs == predict(ensemble, images).log_probs).all()
    assert found.kept == 0


@pytest.mark.parametrize(
    "forged",
    [
        {"log_probs": torch.zeros(39, 3).log_softmax(1)},
        {"log_probs": torch.zeros(40)},
        {"log_probs": torch.zeros(40, 3, dtype=torch.float64).log_softmax(1)},
        {"log_probs": torch.zeros(40, 3)},
        {"log_probs": torch.full((40, 3), torch.nan)},
        {"others": torch.zeros(40, 3).log_softmax(1)},
    ],
    ids=["fewer images", "no classes", "another type", "no probabilities", "NaN", "another name"],
)
def test_what_cannot_be_predictions_of_these_images_is_not_believed(counting, image_set, tmp_path, forged):
    ensemble, images = ge.Ensemble([counting(0)]), image_set()
    expected = predict(ensemble, images, cache=tmp_path).log_probs
    assert expected.shape == (1, 40, 3)
    (file,) = tmp_path.iterdir()
    storage.write_tensors(file, forged, storage.read_tensors(file)[1])
    with pytest.warns(UserWarning, match="computed again"):
        assert (predict(ensemble, images, cache=tmp_path).log_probs == expected).all()


def test_fresh_predictions_take_the_place_of_those_kept(counting, image_set, tmp_path):
    ensemble, images = ge.Ensemble([counting(0), counting(1)]), image_set()
    expected = predict(ensemble, images, cache=tmp_path)
    files = sorted(tmp_path.iterdir())
    for file in files:  # forged with all that can be told
        kept = {"log_probs": torch.zeros(40, 3).log_softmax(1), "logsumexp": torch.zeros(40)}
        storage.write_tensors(file, kept, storage.read_tensors(file)[1])
    forged = predict(ensemble, images, cache=tmp_path)
    assert (forged.log_probs != expected.log_probs).all()
    fresh = predict(ensemble, images, cache=tmp_path, fresh=True)
    again = predict(ensemble, images, cache=tmp_path)
    assert (fresh.log_probs == expected.log_probs).all()
    assert (again.log_probs == expected.log_probs).all()
    assert [found.kept for found in (expected, forged, fresh, again)] == [0, 2, 0, 2]


def test_a_folder_that_cannot_be_written_costs_no_result(counting, image_set, tmp_path):
    (tmp_path / "file").write_text("in the way")
    ensemble, images = ge.Ensemble([counting(0)]), image_set()
    with pytest.warns(UserWarning, match="not kept"):
        found = predict(ensemble, images, cache=tmp_path / "file")
    assert (found.log_probs == predict(ensemble, images).log_probs).all()


def test_a_member_is_kept_before_the_next_is_predicted(counting, image_set, tmp_path):
    broken = counting(1)
    with torch.no_grad():
        broken.layer.bias[0] = torch.nan
    first = counting(0)
    with pytest.raises(ArithmeticError):
        predict(ge.Ensemble([first, broken]), image_set(), cache=tmp_path)
    predict(ge.Ensemble([first]), image_set(), cache=tmp_path)
    assert first.seen == 40


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_predicts_what_the_cpu_does(image_set, tmp_path):
    """By default its convolutions would round to ten bits, and differ by a thousandth."""
    torch.manual_seed(0)
    member = nn.Sequential(nn.Conv2d(1, 256, 3), nn.ReLU(), nn.Conv2d(256, 64, 2), nn.Flatten(), nn.Linear(64, 10))
    images = image_set(count=200)
    twin = copy.deepcopy(member)
    twin[0].weight.data.neg_()
    on_cpu = predict(ge.Ensemble([member, twin]), images).log_probs
    ensemble = ge.Ensemble([member, twin]).to("cuda")
    for batch_size in (1024, 48):  # one by one, and all members as one graph
        on_gpu = predict(ensemble, images, batch_size=batch_size).log_probs
        assert on_gpu == pytest.approx(on_cpu, abs=1e-5)
    assert ensemble._captured is not None
    predict(ensemble[1:], images, batch_size=48, cache=tmp_path / "grown")  # then the new member alone
    assert predict(ensemble, images, batch_size=48, cache=tmp_path / "grown").log_probs == pytest.approx(on_gpu)
    for precision in ("float32", "tf32"):  # what is kept in one is not read in the other
        found = predict(ensemble, images, cache=tmp_path, precision=precision).log_probs
        assert found == pytest.approx(on_cpu, abs=0.05)
    assert (found != on_gpu).any()
    assert len(list(tmp_path.glob("*-tf32.safetensors"))) == 2
    assert sum(path.is_file() for path in tmp_path.iterdir()) == 4


def test_a_batch_that_memory_does_not_hold_is_halved(image_set):
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.fitted = nn.Linear(16, 3), []

        def forward(self, x):
            if len(x) > 7:
                raise torch.OutOfMemoryError("too much")
            self.fitted.append(len(x))
            return self.layer(x.flatten(1))

    ensemble, images = ge.Ensemble([Large()]), image_set(count=12)
    found = predict(ensemble, images, batch_size=20)
    assert ensemble[0].fitted == [5, 5, 2]
    assert (found.log_probs == predict(ensemble, images, batch_size=5).log_probs).all()
    with pytest.raises(torch.OutOfMemoryError):
        predict(ge.Ensemble([Full()]), images)


class Full(nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError("even of one")


def test_bad_input(counting, image_set):
    ensemble = ge.Ensemble([counting(0)])
    with pytest.raises(ValueError, match="inside holds no images"):
        predict(ensemble, image_set(count=0))
    with torch.no_grad():
        ensemble[0].layer.bias[0] = torch.nan
    with pytest.raises(ArithmeticError, match="NaN or infinite on 40 of 40"):
        predict(ensemble, image_set())
