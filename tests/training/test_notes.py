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
    notes = training_notes({**CONFIGURATION, "strength": None}, None, [{"origin": "earlier"}])
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
