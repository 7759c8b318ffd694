"""The page of runs that were made more than once, against records written here; and the one that is published."""

import re
from pathlib import Path

import pytest
from benchmarks import repeats

from greedy_ensembles import storage


def record(started, aucs, status="done", name="a-run", version="0.1.0", **inside):
    """A record with what the page reads; `aucs`: (kind, AUC, contents) by set."""
    ood = [
        {"name": own, "kind": kind, "auc": auc, "content": content}
        for own, (kind, auc, content) in (aucs or {}).items()
    ]
    return {
        "name": name,
        "status": status,
        "message": "" if status == "done" else "it left the range of numbers in member 2. Try less",
        "machine": {
            "started": started,
            "git_commit": None,
            "device": "a GPU",
            "versions": {"greedy_ensembles": version, "torch": "2"},
        },
        "evaluation": {"in_domain": {"accuracy": 0.9, "nll": 0.25, **inside}, "ood": ood} if status == "done" else None,
    }


@pytest.fixture
def results(tmp_path):
    def write(page, number, content):
        folder = tmp_path / page / "records"
        folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(folder / f"run-seed{number}.json", content)

    first = record("2026-01-01T10:00", {"b": ("synthetic", 0.5, "x"), "s": ("natural", 0.75, "y")})
    write("one", 1, first)
    write("other", 1, first)  # shown by two pages, made once
    write("one", 2, record("2026-01-01T10:00", {}, name="made-once"))
    write("later", 1, record("2026-01-03T10:00", {}, version="0.2.0"))  # the same name, trained by other rules
    write("methods", 1, {"settings": {}, "rows": {}})
    again = {"b": ("synthetic", 0.75, "x"), "s": ("natural", 0.9, "other images")}
    write("repeats", 1, record("2025-12-31T10:00", again, member_accuracies=[0.5, 0.25]))
    write("repeats", 2, record("2026-01-02T10:00", None, status="diverged"))
    return tmp_path


def test_runs_made_more_than_once_are_found_the_oldest_first(results):
    found = repeats.tries(results)
    assert [entry["machine"]["started"][:10] for entry in found.pop("a-run")] == [
        "2025-12-31",
        "2026-01-01",
        "2026-01-02",
    ]
    assert not found


def test_tries_are_compared_on_the_same_images_alone(results):
    (records,) = repeats.tries(results).values()
    assert repeats.shared(records) == {"b": ("synthetic", [0.75, 0.5])}


def test_the_page_has_every_try_and_what_was_written_by_hand(results):
    page = repeats.page(repeats.tries(results)).text("Written by hand.")
    assert "|  | 2025-12-31T10:00 | 2026-01-01T10:00 |" in page
    assert "| members alone (%) | 50.0, 25.0 | not known |" in page
    assert "| mean AUC, 1 synthetic | 0.750 | 0.500 |" in page
    assert "| a-run | 3 | 0.00 | 0.250 |  |  |" in page  # no natural set was the same in both, and there are no blobs
    assert "mean AUC, 1 natural" not in page
    assert re.search(r"2026-01-02T10:00 did not end: .* member 2\.", page)
    assert page.startswith("# The same run again\n\nWritten by hand.\n\n")


def test_the_page_that_is_published_is_made_of_its_records():
    results = Path(__file__).parents[1] / "results"
    reading = (results / "repeats/records/reading.md").read_text()
    assert (results / "repeats/repeats.md").read_text() == repeats.page(repeats.tries(results)).text(reading)
