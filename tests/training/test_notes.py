import pickle

import torch

import greedy_ensembles as ge
from greedy_ensembles.training.notes import training_notes

CONFIGURATION = {"strength": 3.0, "schedule": "concurrent", "seed": 7, "validation": 0.1}


def test_data_method_and_accuracy():
    data = {"name": "mnist", "images": 60_000, "note": "half of it"}
    members = [{"validation_accuracy": 0.99}, {"validation_accuracy": 0.985}]
    assert training_notes(CONFIGURATION, data, members) == {
        "Data": "mnist, 60,000 images (half of it)",
        "Training": "greedy, lambda_M = 3; concurrent schedule, seed 7",
        "Validation accuracy": "98.50% to 99.00% a member, on 10% of the examples, held out",
    }


def test_what_is_not_known_is_not_said():
    notes = training_notes({**CONFIGURATION, "strength": None}, None, [{"number": 1}])
    assert notes == {"Data": "arrays, which have no name", "Training": "Deep Ensembles; concurrent schedule, seed 7"}


def test_the_card_of_a_trained_ensemble_has_them_from_memory_and_from_a_folder(blobs, make_model, quick, tmp_path):
    def lines(ensemble, name):
        ensemble.save(tmp_path / name, notes={"Test accuracy": 0.5})
        return (tmp_path / name / "README.md").read_text()

    options = {**quick, "validation": 0.25}
    in_memory = lines(ge.fit(make_model, blobs, size=2, strength=1.0, **options), "memory")
    ge.fit(make_model, blobs, size=2, strength=1.0, run_dir=tmp_path / "run", **options)
    from_folder = lines(ge.load_run(tmp_path / "run", make_model).ensemble, "folder")
    for text in (in_memory, from_folder):
        assert "| Training | greedy, lambda_M = 1; sequential schedule, seed 0 |" in text
        assert "held out |" in text
        assert "| Test accuracy | 0.5 |" in text
    assert from_folder == in_memory


def test_notes_stay_with_an_ensemble_wherever_it_goes(blobs, make_model, quick, tmp_path):
    ensemble = ge.fit(make_model, blobs, size=3, strength=1.0, **quick)
    assert set(ensemble.notes) == {"Data", "Training", "Validation accuracy"}
    ensemble.save(tmp_path / "saved", notes={"Test accuracy": 0.5})
    loaded = ge.Ensemble.load(tmp_path / "saved", make_model)
    assert loaded.notes == {**ensemble.notes, "Test accuracy": "0.5"}
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == (tmp_path / "saved" / "README.md").read_text()
    assert ensemble[1:].notes == {**ensemble.notes, "Part": "2 of the members of which this is said"}
    assert ensemble[:].notes == ensemble.notes


def test_members_that_were_there_before_are_told_apart(blobs, make_model, quick):
    first = ge.fit(make_model, blobs, size=2, strength=1.0, **quick)
    more = ge.fit(make_model, blobs, size=3, strength=1.0, earlier=first, **{**quick, "validation": 0.25})
    assert more.notes["Training"].endswith("; 2 of the members were there before, from elsewhere")
    assert "% a member that was trained here, on 25% of the examples" in more.notes["Validation accuracy"]


def test_the_card_of_an_estimator():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).numpy()
    fitted = ge.GreedyEnsembleClassifier(size=2, hidden=(4,), recipe=ge.Recipe(epochs=1), device="cpu")
    notes = pickle.loads(pickle.dumps(fitted.fit(x, x[:, 0] > 0))).ensemble_.notes
    assert notes["Data"] == "a table of 40 rows and 3 columns"
    assert notes["Training"].startswith("greedy, lambda_M = 1")
