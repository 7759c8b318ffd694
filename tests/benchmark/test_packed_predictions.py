import dataclasses
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.benchmark import Predictions, judge, pack_predictions, unpack_predictions
from greedy_ensembles.benchmark.packing import _normalised
from greedy_ensembles.storage import FolderError


@pytest.fixture
def packed(random_predictions, tmp_path):
    """Pack some predictions; returns what was packed, and the files."""

    def make(count=300, scale=3.0, **options):
        inside = random_predictions("inside", count=count, scale=scale, labelled=True, note="partial: 1 % & more")
        outside = [
            random_predictions(name, count=count, scale=scale, spread=scale, seed=i) for i, name in enumerate("ab")
        ]
        inside, *outside = (dataclasses.replace(each, content=f"hash of {each.name}") for each in (inside, *outside))
        return inside, outside, pack_predictions(tmp_path / "run.npz", inside, outside, **options)

    return make


def test_what_comes_out_is_what_went_in_but_for_rounding(packed):
    inside, outside, files = packed(missing=["dtd"], information={"size": 3, "nested": {"seed": 1}})
    found = unpack_predictions(files[0])
    assert len(files) == 1
    assert found.missing == ("dtd",)
    assert found.information == {"size": 3, "nested": {"seed": 1}}
    assert (found.in_domain.labels == inside.labels).all()
    assert found.in_domain.note == "partial: 1 % & more"
    assert [predictions.name for predictions in found.ood] == ["a", "b"]
    for ours, theirs in zip([inside, *outside], [found.in_domain, *found.ood], strict=True):
        assert theirs.log_probs.dtype == np.float32
        assert theirs.content == ours.content == f"hash of {ours.name}"
        # Half precision keeps 11 significant bits; normalising moves a row by no more than its largest error.
        bound = (
            2.0**-11 * np.abs(ours.log_probs)
            + 2.0**-11 * np.abs(ours.log_probs * np.exp(ours.log_probs)).sum(2)[..., None]
        )
        assert (np.abs(theirs.log_probs - ours.log_probs) <= 1.01 * bound + 1e-6).all()
        assert (np.abs(theirs.logsumexp - ours.logsumexp) <= 2.0**-11 * np.abs(ours.logsumexp)).all()


@pytest.mark.parametrize("scale", [1.0, 4.0, 10.0, 30.0])
def test_what_rounding_does_to_figures_is_bounded(packed, scale):
    """From members that hardly know to members that are certain: less than one in the last decimal of tables."""
    inside, outside, files = packed(count=5000, scale=scale)
    found = unpack_predictions(files[0])
    ours, theirs = judge(inside, outside), judge(found.in_domain, found.ood)
    assert theirs.in_domain.nll == pytest.approx(ours.in_domain.nll, rel=1e-3)
    for metric in ("accuracy", "brier", "ace", "ece"):
        assert getattr(theirs.in_domain, metric) == pytest.approx(getattr(ours.in_domain, metric), abs=1e-3)
    assert np.abs(theirs.in_domain.scores - ours.in_domain.scores).max() < 1e-3
    for one, other in zip(ours.ood, theirs.ood, strict=True):
        differences = [abs(getattr(other, metric) - getattr(one, metric)) for metric in ("auc", "ap", "fpr95")]
        assert max(differences) < 1e-3
        assert np.abs(other.scores - one.scores).max() < 1e-3
        for kind in ("predictive_entropy", "energy"):
            assert other.by_score[kind] == pytest.approx(one.by_score[kind], abs=1e-3)


def test_half_precision_probabilities_would_not_do():
    """The plausible wrong way: their likelihood is 0 where the logarithm's is fine."""
    log_probs = np.array([[[-20.0, 0.0]]], np.float32)
    assert np.exp(log_probs).astype(np.float16)[0, 0, 0] == 0
    found = judge(Predictions("x", _normalised(log_probs.astype(np.float16)), np.array([0])), [])
    assert found.in_domain.nll == pytest.approx(20.0)


@given(st.lists(st.floats(-80, 30, width=16), min_size=2, max_size=6))
def test_rows_add_up_to_one_again(values):
    rows = _normalised(np.array([[values]], np.float16))
    assert np.exp(rows.astype(np.float64)).sum() == pytest.approx(1, abs=1e-6)


def test_a_nearly_certain_class_is_not_rounded_to_certainty():
    """log(1 - 1e-8) is 0 in half precision; what the other class has brings it back."""
    log_probs = np.log([[[1 - 1e-8, 1e-8]]]).astype(np.float16)
    assert log_probs[0, 0, 0] == 0
    assert _normalised(log_probs)[0, 0, 0] == pytest.approx(-1e-8, rel=0.02)


def test_classes_that_are_impossible_stay_so(tmp_path):
    log_probs = np.array([[[0.0, -np.inf], [-1e6, 0.0]]], np.float32)
    (file,) = pack_predictions(tmp_path / "x.npz", Predictions("x", log_probs), [])
    assert np.exp(unpack_predictions(file).in_domain.log_probs).tolist() == [[[1, 0], [0, 1]]]


def test_several_files_of_at_most_the_limit(packed, tmp_path):
    inside, _, files = packed(limit=12_000)
    assert [file.name for file in files[:3]] == ["run.npz", "run.2.npz", "run.3.npz"]
    assert all(file.stat().st_size <= 12_000 for file in files)
    found = unpack_predictions(tmp_path / "run.npz")
    assert np.exp(found.in_domain.log_probs) == pytest.approx(np.exp(inside.log_probs), abs=2e-3)
    with pytest.raises(FolderError, match=r"part 2 of .*name the first one"):
        unpack_predictions(files[1])
    files[2].unlink()
    with pytest.raises(FolderError, match=r"run.3.npz is damaged \(it is missing\)"):
        unpack_predictions(files[0])


def test_the_default_limit_is_16_mebibytes(random_predictions, tmp_path):
    large = random_predictions(count=45_000, members=20, classes=10, labelled=True)  # 18 MB in half precision
    files = pack_predictions(tmp_path / "x.npz", large, [])
    assert len(files) == 2
    assert max(file.stat().st_size for file in files) <= 16 * 2**20


def test_parts_of_other_predictions_are_refused(packed, random_predictions, tmp_path):
    _, _, files = packed(limit=12_000)
    other = random_predictions("inside", count=900, seed=9, labelled=True)
    others = pack_predictions(tmp_path / "other.npz", other, [], limit=12_000)
    others[1].replace(files[1])
    with pytest.raises(FolderError, match=r"belongs to other predictions than run\.npz"):
        unpack_predictions(files[0])


@pytest.mark.parametrize("damage", ["truncated", "no zip", "values"])
def test_damage_is_refused(packed, damage):
    _, _, (file,) = packed()
    content = bytearray(file.read_bytes())
    if damage == "values":
        with np.load(file) as arrays:
            parts = dict(arrays)
        parts["values"][7] = -1.0
        np.savez(file, **parts)
    else:
        file.write_bytes({"truncated": content[: len(content) // 2], "no zip": b"hello"}[damage])
    with pytest.raises(FolderError, match=r"run\.npz is damaged"):
        unpack_predictions(file)


def test_other_files_are_refused(packed, tmp_path):
    np.savez(tmp_path / "images.npz", x=np.zeros(3))
    with pytest.raises(FolderError, match="no predictions of ours"):
        unpack_predictions(tmp_path / "images.npz")
    _, _, (file,) = packed()
    forge(file, format=2)
    with pytest.raises(FolderError, match="has format 2"):
        unpack_predictions(file)


def test_files_from_before_hashes_were_kept_are_read(packed):
    _, _, (file,) = packed()
    with np.load(file) as arrays:
        sets = json.loads(arrays["header"].tobytes())["sets"]
    forge(file, sets=[{key: value for key, value in entry.items() if key != "content"} for entry in sets])
    assert unpack_predictions(file).in_domain.content == ""


def forge(file, labels=None, **changes):
    """Change what a packed file says, with the checksum that it then has to have."""
    with np.load(file) as arrays:
        parts = dict(arrays)
    parts["labels"] = parts["labels"] if labels is None else labels
    digest = hashlib.sha256(parts["values"].tobytes() + parts["labels"].tobytes()).hexdigest()
    header = {**json.loads(parts["header"].tobytes()), "sha256": digest, **changes}
    np.savez(file, **{**parts, "header": np.frombuffer(json.dumps(header).encode(), np.uint8)})


SET = {"name": "x", "note": "", "content": "", "shape": [1, 300, 3]}
ODD_SETS = [
    *([{**SET, "logsumexp": value, "shape": [1, 900, 1]}] for value in (True, 1, "yes")),
    *(None, 3, [], [3], [{}]),
    *([{**SET, "shape": shape}] for shape in (3, [3], [1, -300, -3], [1, 300, 3.0], [1, 10**9, 10**9], [0, 1, 1])),
    *([{**SET, name: 3}] for name in ("name", "note", "content")),
]


@pytest.mark.parametrize(
    "changes",
    [
        *({"sets": sets} for sets in ODD_SETS),
        *({"missing": missing} for missing in (None, 3, [3], "dtd")),
        *({"information": information} for information in (None, 3, [])),
        *({name: number} for name in ("part", "parts") for number in (None, "1", 1.0, True, 0, -1, 10**9)),
        *({"format": number} for number in (None, "1", [1])),
        {"labels": np.zeros(299, np.int64)},
        {"labels": np.zeros((300, 1), np.int64)},
        {"labels": np.zeros(300, np.float32)},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_forged_headers_are_refused(packed, changes):
    _, _, (file,) = packed()
    forge(file, **changes)
    with pytest.raises(FolderError, match=r"run(\.2)?\.npz"):
        unpack_predictions(file)


def test_compressed_files_are_refused_before_they_are_unpacked(packed):
    _, _, (file,) = packed()
    with np.load(file) as arrays:
        np.savez_compressed(file, **arrays)
    with pytest.raises(FolderError, match="no predictions of ours"):
        unpack_predictions(file)


@given(at=st.integers(0, 6000), content=st.binary(min_size=1, max_size=8))
def test_changed_bytes_are_refused_or_mean_nothing(tmp_path_factory, at, content):
    file = tmp_path_factory.mktemp("changed") / "run.npz"
    log_probs = np.log(np.full((2, 50, 4), 0.25, np.float32))
    pack_predictions(file, Predictions("x", log_probs, np.zeros(50, np.int64)), [])
    before = file.read_bytes()
    at %= len(before)
    file.write_bytes(before[:at] + content + before[at + len(content) :])
    said = "run.npz"
    try:
        found = unpack_predictions(file).in_domain.log_probs
    except FolderError as error:
        said, found = str(error), log_probs
    assert "run.npz" in said
    assert np.allclose(found, log_probs)
