import json

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from greedy_ensembles.forms import InputForm, from_json, to_json
from greedy_ensembles.inputs import (
    as_normalize,
    as_stored,
    as_tensor,
    concatenate,
    device_of,
    dtype_of,
    length,
    move,
    take,
    to_model,
)
from greedy_ensembles.labels import as_labels


def test_bytes_are_scaled_and_normalised_by_channel():
    images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    found = to_model(images, (mean, std), torch.float32)
    for channel in range(3):
        expected = (images[:, channel].float() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(found[:, channel], expected)


def test_floats_take_the_models_type_and_tokens_pass():
    x = torch.randn(3, 2, dtype=torch.float64)
    assert to_model(x, None, torch.float32).dtype == torch.float32
    tokens = torch.arange(6).reshape(2, 3)
    assert torch.equal(to_model(tokens, ((0.5,), (2.0,)), torch.float32), tokens)
    for given in (x.float(), tokens, torch.zeros(2, 2, dtype=torch.uint8)):  # models may work in place
        assert to_model(given, None, torch.float32).data_ptr() != given.data_ptr()


def test_one_number_serves_all_dimensions():
    x = torch.randn(3, 7)
    torch.testing.assert_close(to_model(x, as_normalize((1.0, 2.0)), torch.float32), (x - 1) / 2)
    torch.testing.assert_close(to_model(x, as_normalize(([0.0] * 7, [4.0] * 7)), torch.float32), x / 4)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((0.5,), r"normalize must be \(mean, std\)"),
        (((0.5, 0.5), 1.0), "2 means and 1 standard deviations"),
        ((0.0, 0.0), "standard deviations positive"),
        ((float("nan"), 1.0), "must be finite"),
        ((0.0, float("inf")), "must be finite"),
        (("a", 1.0), r"normalize must be \(mean, std\)"),
    ],
)
def test_bad_normalize_is_explained(value, message):
    with pytest.raises(ValueError, match=message):
        as_normalize(value)


def test_normalize_takes_arrays_and_tensors():
    expected = ((0.5, 0.25), (1.0, 2.0))
    assert as_normalize((torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0]))) == expected
    assert as_normalize(np.array(expected)) == expected


def test_arrays_of_every_layout_become_tensors():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = x.copy()
    frozen.setflags(write=False)
    for array in (x[:, ::-1], x.astype(">f4"), frozen, x.T):
        assert torch.equal(as_tensor(array), torch.tensor(array.astype(np.float32).tolist()))
    assert as_tensor(x).data_ptr() == torch.from_numpy(x).data_ptr()  # shared where it can be


BYTES = InputForm((3,), torch.uint8)


def test_byte_data_gets_bytes_where_samples_are_whole_and_the_same_scale_where_not():
    pixels = torch.tensor([[0.0, 7.0, 255.0]])
    assert as_stored(pixels, BYTES).dtype == torch.uint8
    for samples in (pixels - 1, pixels + 0.5, pixels * 2):
        assert torch.equal(as_stored(samples, BYTES), samples / 255)
    assert as_stored(pixels, InputForm((3,), torch.float32)) is pixels
    already = pixels.to(torch.uint8)
    assert as_stored(already, BYTES) is already


def test_type_and_device_of_a_model():
    assert dtype_of(nn.Linear(2, 2, dtype=torch.float64)) == torch.float64
    assert dtype_of(nn.ReLU()) == torch.float32
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_double_precision_is_kept_until_the_mean_is_out():
    x = 1.7e9 + torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    # In single precision the three would be one number.
    assert to_model(x, ((1.7e9 + 1,), (0.5,)), torch.float32).tolist() == [[-2.0], [0.0], [2.0]]
    assert to_model(x.float(), ((0.0,), (1.0,)), torch.float32).unique().numel() == 1


PIXELS, TABLE, TOKENS = (
    InputForm((1, 2, 2), torch.uint8),
    InputForm((2,), torch.float32),
    InputForm((2,), torch.int64),
)
FLOATS = InputForm((1, 2, 2), torch.float32, (0.0, 1.0))
IMAGES = torch.tensor([0, 51, 102, 255]).reshape(1, 1, 2, 2)
ROWS = torch.tensor([[3, 200]])


@pytest.mark.parametrize(
    ("form", "given", "seen"),
    [
        (PIXELS, IMAGES.byte(), IMAGES / 255),
        (PIXELS, IMAGES, IMAGES / 255),
        (PIXELS, IMAGES.int(), IMAGES / 255),
        (PIXELS, IMAGES.to(torch.uint16), IMAGES / 255),
        (PIXELS, IMAGES / 255, IMAGES / 255),
        (PIXELS, IMAGES[:0], IMAGES[:0].float()),
        (FLOATS, IMAGES.byte(), IMAGES / 255),
        (FLOATS, IMAGES / 255, IMAGES / 255),
        (FLOATS, IMAGES - 300.0, IMAGES - 300.0),  # far from the data, and no pixels of 0 to 255
        (FLOATS, IMAGES / 8 + 0.5, IMAGES / 8 + 0.5),
        (FLOATS, IMAGES + 0.5, IMAGES + 0.5),  # beyond what pixels are
        (FLOATS._replace(shape=(2, 1, 2)), IMAGES.reshape(-1, 2, 1, 2) / 2.5, IMAGES.reshape(-1, 2, 1, 2) / 2.5),
        (FLOATS._replace(range=(0.0, 255.0)), (IMAGES > 60).float(), (IMAGES > 60).float()),  # nearly black
        (FLOATS, (IMAGES > 60).float(), (IMAGES > 60).float()),
        (FLOATS._replace(range=(-2.0, 50.0)), IMAGES.float(), IMAGES.float()),
        (FLOATS._replace(range=(-2.0, 2.0)), IMAGES - 1.0, IMAGES - 1.0),  # no pixels of 0 to 255
        (FLOATS._replace(range=None), IMAGES.byte(), IMAGES / 255),  # as in folders of version 0.1
        (TABLE, ROWS.double(), ROWS.float()),
        (TABLE, ROWS, ROWS.float()),
        (TABLE, ROWS.to(torch.uint32), ROWS.float()),
        (TABLE, ROWS > 100, torch.tensor([[0.0, 1.0]])),
        (TABLE._replace(range=(0.0, 1.0)), ROWS.float(), ROWS.float()),
        (TOKENS, ROWS, ROWS),
        (TOKENS, ROWS.int(), ROWS),
        (TOKENS, ROWS.byte(), ROWS),
    ],
)
def test_models_see_other_types_as_they_would_see_their_own(form, given, seen):
    found = to_model(form.admit(given), None, torch.float32)
    torch.testing.assert_close(found, seen, check_dtype=False)


@pytest.mark.parametrize(
    ("form", "given", "message"),
    [
        (
            PIXELS,
            IMAGES.float(),
            r"float32 of shape \(1, 2, 2\), from 0 to 255, .* trained on uint8 of shape \(1, 2, 2\)",
        ),
        (PIXELS, IMAGES + 1, "int64 of shape .*, from 1 to 256"),
        (PIXELS, IMAGES / 255 - 0.5, r"as uint8, or floats in \[0, 1\]"),
        (PIXELS, IMAGES > 60, "bool"),
        (PIXELS, IMAGES.byte()[..., :1], r"shape \(1, 2, 1\), .* trained on uint8 of shape \(1, 2, 2\)"),
        (FLOATS, IMAGES.float(), r"from 0 to 255, .* in \[0, 1\]: divide them by 255"),
        (FLOATS, IMAGES - 0.5 * (IMAGES > 0), r"from 0 to 254.5, .* in \[0, 1\]: divide them by 255"),
        (FLOATS, IMAGES, "divide them by 255"),
        (FLOATS, IMAGES.to(torch.uint16), "divide them by 255"),
        (FLOATS._replace(range=(-2.0, 2.0)), IMAGES.byte(), r"give x\.float\(\)"),
        (FLOATS._replace(range=(-2.0, 2.0)), IMAGES.float(), r"from 0 to 255, .* in \[-2, 2\]: prepare them as"),
        (TABLE, ROWS.byte(), r"uint8 of shape \(2,\), .* float32 of shape \(2,\): .* give x\.float\(\)"),
        (TOKENS, ROWS.float(), "give inputs of that type"),
        (TOKENS, ROWS > 100, "give inputs of that type"),
    ],
)
def test_what_models_would_take_for_something_else_is_refused(form, given, message):
    with pytest.raises(ValueError, match=message) as raised:
        form.admit(given)
    assert "ensemble.inputs = None" in raised.value.__notes__[0]


def test_the_form_of_inputs_is_read_back_and_what_is_none_refused():
    for form in (PIXELS, FLOATS, TABLE):
        assert InputForm.from_json(form.to_json()) == form
    for limits in ([0.0], [1.0, 0.0], [0, 1], [0.0, float("nan")], [0.0, float("inf")], "01", {"low": 0.0}):
        with pytest.raises(ValueError, match="range"):
            InputForm.from_json({"shape": [2], "type": "float32", "range": limits})


def test_an_array_on_disk_is_shared_and_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(4, 3))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    tensor = as_tensor(array)  # without a warning, too
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    assert torch.equal(tensor, torch.arange(12.0, dtype=torch.float64).reshape(4, 3))


@pytest.mark.parametrize(
    "form",
    [
        TABLE,
        {"input_ids": InputForm((None,), torch.int64), "pixels": PIXELS},
        (FLOATS, InputForm((3, None), torch.bool)),
        InputForm((2,), torch.float64, (0.0, 1.0), ("age", "height")),
    ],
    ids=["tensor", "dict", "tuple", "named"],
)
def test_the_form_of_entries_is_read_back(form):
    assert from_json(json.loads(json.dumps(to_json(form)))) == form


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"entries": {}},
        {"entries": "input_ids"},
        {"entries": {"input_ids": {"shape": [-1], "type": "int64"}}},
        {"entries": {"input_ids": {"entries": {}}}},
        [{"shape": [2], "type": "object"}],
        {"shape": ["None"], "type": "int64"},
        {"shape": [2], "type": "float64", "columns": ["age"]},
        {"shape": [2], "type": "float64", "columns": ["age", 1]},
        {"shape": [1, 2], "type": "float64", "columns": ["age", "height"]},
    ],
)
def test_entries_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match="inputs"):
        from_json(value)


def test_functions_of_inputs_do_to_every_entry_what_torch_does_to_a_tensor():
    a, b = torch.arange(6).reshape(3, 2), torch.arange(3)
    rows = torch.tensor([2, 0])
    for x, parts in (({"a": a, "b": b}, dict.values), ((a, b), iter)):
        assert length(x) == 3
        for found, one in zip(parts(take(x, rows)), (a, b), strict=True):
            assert torch.equal(found, one[rows])
        for found, one in zip(parts(concatenate([x, x])), (a, b), strict=True):
            assert torch.equal(found, torch.cat([one, one]))
        assert [one.dtype for one in parts(move(x, torch.int32))] == [torch.int32] * 2
    assert move(a, memory_format=torch.channels_last) is a  # a network may make images of rows itself
    with pytest.raises(KeyError):
        concatenate([{"a": a}, {"b": a}])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        concatenate([(a, b), (a,)])


def test_what_is_no_array_of_numbers_says_why():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2.0], "left": [True, False], "n": pandas.array([1, None], dtype="Int64")})
    with pytest.raises(TypeError, match=r"array of object; columns left, n .*x\.astype\(float\)"):
        as_tensor(frame)
    assert as_tensor(frame[["age"]]).shape == (2, 1)
    with pytest.raises(TypeError, match=r"sparse matrix; give x\.toarray\(\)"):
        as_tensor(scipy.sparse.eye(3))
    with pytest.raises(TypeError, match=r"array of <U1$"):
        as_tensor(np.array(["a"]))


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_numbers_that_are_no_classes_are_told_to_be_none_whatever_their_shape(shape):
    with pytest.raises(TypeError, match=r"whole numbers .*regression .*np\.digitize"):
        as_labels(np.array([0.5, 1.2, 3.0]).reshape(shape))


def test_images_that_may_be_dark_or_on_another_scale_are_told_of_and_taken():
    form = InputForm((1, 2, 2), torch.float32, (0.0, 255.0))
    dark = torch.linspace(0, 0.9, 8).reshape(2, 1, 2, 2)
    with pytest.warns(UserWarning, match=r"from 0 to 0.9, .* in \[0, 255\]: multiply them by 255"):
        assert torch.equal(form.admit(dark), dark)
