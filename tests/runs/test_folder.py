"""Run folders in use: resuming, extending, reading, and every reason to refuse one."""

import json
import shutil
from functools import partial

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.storage import FolderError


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def contents(folder):
    return {f: f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


class Stop(Exception):
    pass


def stop_at(member, epoch):
    def callback(event):
        if (event.member, event.epoch) == (member, epoch):
            raise Stop

    return callback


def test_a_run_in_a_folder_is_the_run_in_memory(fit, blobs, tmp_path):
    on_disk, in_memory = fit(), fit(run_dir=None)
    assert all(same(a, b) for a, b in zip(on_disk, in_memory, strict=True))
    assert torch.equal(on_disk.predict_proba(blobs[0]), in_memory.predict_proba(blobs[0]))


@pytest.mark.parametrize("where", [(1, 1), (1, 3), (2, 2), (3, 3)])
def test_an_interrupted_run_goes_on(fit, where):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(*where)])
    heard = []
    resumed = fit(callbacks=[lambda event: heard.append((event.member, event.epoch))])
    everything = [(m, e) for m in (1, 2, 3) for e in (1, 2, 3)]
    assert heard == everything[everything.index(where) + 1 :]
    assert all(same(a, b) for a, b in zip(resumed, fit(run_dir=None), strict=True))


def test_a_finished_run_returns_at_once_and_touches_nothing(fit, tmp_path):
    first = fit()
    before = contents(tmp_path / "run")

    def never(event):
        raise AssertionError("it trained")

    again = fit(callbacks=[never])
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert contents(tmp_path / "run") == before


def test_a_finished_run_is_extended(fit, tmp_path):
    five = fit(size=3)
    seven = fit(size=5)
    assert len(seven) == 5
    assert all(same(a, b) for a, b in zip(five, seven[:3], strict=True))
    # The new members are those that train against the old ones with the new M.
    elsewhere = fit(size=5, run_dir=None, earlier=five)
    assert all(same(a, b) for a, b in zip(seven, elsewhere, strict=True))
    run = ge.load_run(tmp_path / "run", partial(ge.models.MLP, 2, hidden=(8,)))
    assert run.size == 5
    assert run.information["extended_from"] == [3]
    assert [member["size"] for member in run.members] == [3, 3, 3, 5, 5]


def test_an_interrupted_extension_goes_on(fit):
    fit(size=2)
    with pytest.raises(Stop):
        fit(size=4, callbacks=[stop_at(3, 2)])
    with pytest.raises(FolderError, match=r"size 4 .*2 members .*finish .*size=4"):
        fit(size=2)
    resumed = fit(size=4)
    expected = fit(size=4, run_dir=None, earlier=fit(size=2, run_dir=None))
    assert all(same(a, b) for a, b in zip(resumed, expected, strict=True))


def test_earlier_members_are_part_of_the_folder(fit, tmp_path):
    earlier = fit(size=2, run_dir=None)
    with pytest.raises(Stop):
        fit(size=4, earlier=earlier, callbacks=[stop_at(4, 1)])
    whole = fit(size=4, earlier=earlier)
    assert all(same(a, b) for a, b in zip(whole, fit(size=4, run_dir=None, earlier=earlier), strict=True))
    run = ge.load_run(tmp_path / "run", lambda: ge.models.MLP(2, (8,)))
    assert len(run.ensemble) == 4
    assert [member.get("origin") for member in run.members] == ["earlier", "earlier", None, None]
    with pytest.raises(FolderError, match="earlier"):
        fit(size=4, earlier=fit(size=2, run_dir=None, seed=9))


def test_a_smaller_size_and_an_unfinished_run_are_refused(fit, tmp_path):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(2, 1)])
    for size in (2, 5):
        with pytest.raises(FolderError, match=rf"size 3 .*1 members .*finish .*size=3, .*size={size}"):
            fit(size=size)
    fit()
    before = contents(tmp_path / "run")
    with pytest.raises(FolderError, match=r"finished run of size 3.* size 2.*ensemble\[:2\]"):
        fit(size=2)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strength": 3.0}, "strength is 2.0 there and 3.0 here"),
        ({"method": "deep", "strength": None}, 'method.label is "greedy" there and "Deep Ensembles" here'),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"validation": 0.2}, "validation is 0.1 there and 0.2 here"),
        ({"distance": "logits"}, 'distance is "probabilities" there and "logits" here'),
        ({"recipe": ge.Recipe(epochs=4, batch_size=16)}, "recipe.epochs is 3 there and 4 here"),
        ({"weighting": ge.weighting.Uniform(0, 1, (2,))}, 'weighting.class is "Gaussian" there and "Uniform" here'),
        ({"data": (torch.zeros(60, 2), torch.arange(60) % 2)}, "data is .* there and .* here"),
        ({"make_model": lambda: ge.models.MLP(2, (9,))}, r"model.0.weight is \[8, 2\] there and \[9, 2\] here"),
    ],
)
def test_another_configuration_is_refused_and_nothing_changes(fit, tmp_path, changes, message):
    fit()
    before = contents(tmp_path / "run")
    with pytest.raises(FolderError, match=rf"run\.json is of another configuration: .*{message}"):
        fit(**changes)
    assert contents(tmp_path / "run") == before


def test_progress_device_and_callbacks_are_no_configuration(fit):
    fit()
    assert len(fit(progress=True, callbacks=[print])) == 3


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "members/01/member.json",
        "members/02/weights.safetensors",
        "members/01/history.jsonl",
        "bank/02.safetensors",
    ],
)
@pytest.mark.parametrize("harm", ["truncate", "alter", "delete"])
def test_a_damaged_file_is_named_and_nothing_is_lost(fit, tmp_path, name, harm):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(3, 1)])
    file = tmp_path / "run" / name
    content = bytearray(file.read_bytes())
    if harm == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "alter":
        content[-20] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(FolderError) as refused:
        fit()
    assert file.name in str(refused.value)
    assert contents(tmp_path / "run") == before
    content[-20] ^= harm == "alter"
    file.write_bytes(content)
    assert all(same(a, b) for a, b in zip(fit(), fit(run_dir=None), strict=True))


@pytest.mark.parametrize("harm", ["truncate", "alter"])
def test_a_damaged_checkpoint_says_how_to_do_without(fit, tmp_path, harm):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(2, 2)])
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    content = bytearray(checkpoint.read_bytes())
    content[-1] ^= 1
    checkpoint.write_bytes(content if harm == "alter" else content[:-100])
    with pytest.raises(FolderError, match=r"checkpoint\.safetensors is damaged .* Delete .*member 2"):
        fit()
    checkpoint.unlink()
    assert all(same(a, b) for a, b in zip(fit(), fit(run_dir=None), strict=True))


def test_a_finished_member_that_vanished_is_noticed(fit, tmp_path):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(3, 1)])
    shutil.rmtree(tmp_path / "run" / "members" / "02")
    message = r"02.member\.json is damaged \(it is missing while checkpoint\.safetensors is of member 3\)"
    with pytest.raises(FolderError, match=message):
        fit()


def test_a_run_without_a_finished_member_says_so(fit, tmp_path):
    with pytest.raises(Stop):
        fit(callbacks=[stop_at(1, 1)])
    with pytest.raises(ValueError, match="has no finished member yet"):
        _ = ge.load_run(tmp_path / "run", lambda: ge.models.MLP(2, (8,))).ensemble


def test_advice_on_memory_can_be_followed_in_the_same_folder(fit, tmp_path):
    with pytest.raises(ValueError, match="use a smaller p"):
        fit(recipe=ge.Recipe(epochs=3, weighting_samples=10**13))
    assert len(fit(recipe=ge.Recipe(epochs=3, weighting_samples=30))) == 3


def test_a_home_folder_is_found(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    fit(run_dir="~/my runs")
    assert (tmp_path / "my runs" / "run.json").exists()
    assert ge.load_run("~/my runs").finished


def test_a_folder_of_other_things_is_refused(fit, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(FolderError, match=r"run_dir .*run .*'thesis\.tex' .*no run\.json.* empty folder"):
        fit()
    assert [f.name for f in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("strength", [None, 1.0])
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(fit, tmp_path, strength):
    broken = [False]

    def loss(logits, targets):
        return torch.nn.functional.cross_entropy(logits, targets) * (float("nan") if broken[0] else 1.0)

    def break_it(event):
        broken[0] = (event.member, event.epoch) == (2, 1)

    method = {"method": "deep", "strength": None} if strength is None else {"strength": strength}
    changes = {"recipe": ge.Recipe(epochs=3, batch_size=16, loss=loss), **method}
    with pytest.raises(ge.NonFiniteLossError) as stopped:
        fit(**changes, callbacks=[break_it])
    message = str(stopped.value)
    assert "in member 2 of 3, epoch 2" in message
    assert "smaller lr" in message
    assert ("at lambda_M = 1 " in message) == ("smaller strength" in message) == (strength is not None)
    assert len(ge.load_run(tmp_path / "run", lambda: ge.models.MLP(2, (8,))).ensemble) == 1
    broken[0], heard = False, []
    resumed = fit(**changes, callbacks=[lambda event: heard.append((event.member, event.epoch))])
    assert heard[0] == (2, 2)
    assert all(same(a, b) for a, b in zip(resumed, fit(**changes, run_dir=None), strict=True))


def test_weights_that_overflow_in_the_last_step_are_noticed(fit):
    recipe = ge.Recipe(epochs=1, batch_size=64, lr=1e38, momentum=0.0, weight_decay=1e10)
    with pytest.raises(ge.NonFiniteLossError, match="in member 1 of 3, epoch 1"):
        fit(recipe=recipe, validation=0)


def test_a_keyboard_interrupt_says_how_to_go_on(fit, tmp_path):
    def press(event):
        if event.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupted:
        fit(callbacks=[press])
    assert interrupted.value.__notes__ == [
        "Interrupted after member 1, epoch 2; started again in the same way, it goes on after the last epoch that was "
        "saved."
    ]
    with pytest.raises(KeyboardInterrupt) as interrupted:
        fit(callbacks=[press], run_dir=None)
    assert "nothing was saved. ge.fit(..., run_dir=...)" in interrupted.value.__notes__[0]
    assert len(fit()) == 3


def test_a_run_can_be_read_by_a_person_and_by_load_run(fit, tmp_path, blobs):
    make_model = partial(ge.models.MLP, 2, hidden=(8,))
    trained = fit(make_model=make_model, recipe=ge.Recipe(epochs=3, batch_size=16, normalize=(0.5, 2.0)))
    run = ge.load_run(tmp_path / "run")
    assert run.finished
    assert run.size == 3
    assert torch.equal(run.ensemble.predict_proba(blobs[0]), trained.predict_proba(blobs[0]))
    assert run.strength == 2.0
    assert run.configuration["recipe"]["epochs"] == 3
    assert run.information["versions"]["torch"] == torch.__version__
    assert [len(history) for history in run.histories] == [3, 3, 3]
    record = run.histories[1][2]
    assert record["epoch"] == 3
    assert record["diversity"] < 0
    assert 0 <= record["validation_accuracy"] <= 1
    best = max(record["validation_accuracy"] for record in run.histories[1])
    assert run.members[1]["validation_accuracy"] == best
    text = json.loads((tmp_path / "run" / "run.json").read_text())
    assert text["configuration"]["recipe"]["lr"] == 0.1


def test_a_model_of_ones_own_must_be_passed_to_load_run(fit, tmp_path):
    fit()
    run = ge.load_run(tmp_path / "run")
    assert len(run.histories) == 3
    with pytest.raises(ValueError, match=r"model of your own .*small_mlp.* ge\.load_run\(folder, make_model\)"):
        _ = run.ensemble
    with pytest.raises(FolderError, match="holds no run"):
        ge.load_run(tmp_path)
    with pytest.raises(FolderError, match=r"holds a run: read it with ge\.load_run"):
        ge.Ensemble.load(tmp_path / "run", lambda: ge.models.MLP(2, (8,)))


class Fixed(torch.nn.Module):
    """A linear classifier of features that are drawn once and do not learn, kept in one of three ways."""

    def __init__(self, how):
        super().__init__()
        features = torch.randn(2, 16)
        if how == "attribute":
            self.features = features
        else:
            self.register_buffer("features", features, persistent=how == "buffer")
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.head((x @ self.features).cos())


@pytest.mark.parametrize("how", ["attribute", "unsaved buffer"])
def test_models_that_their_state_dict_does_not_hold_whole_have_no_run_dir(fit, how, tmp_path):
    with pytest.raises(ValueError, match="differ in more than their state_dict"):
        fit(make_model=partial(Fixed, how))
    assert not (tmp_path / "run").exists()


def test_a_buffer_that_is_drawn_at_random_is_read_back(fit, blobs):
    on_disk, in_memory = (fit(make_model=partial(Fixed, "buffer"), **options) for options in ({}, {"run_dir": None}))
    assert torch.equal(on_disk.predict_proba(blobs[0]), in_memory.predict_proba(blobs[0]))


def test_a_finished_folder_builds_models_to_try_and_to_load_alone(fit, make_model):
    """Not those that show, at the start of a run, whether models can be read back."""
    made = []

    def counted():
        made.append(make_model())
        return made[-1]

    fit(make_model=counted)
    made.clear()
    assert len(fit(make_model=counted)) == 3
    assert len(made) == 1 + 3


def test_models_of_several_shapes_have_no_run_dir(fit, tmp_path):
    widths = iter(range(4, 40))
    with pytest.raises(ValueError, match="several shapes"):
        fit(make_model=lambda: ge.models.MLP(2, (next(widths),)))
    assert not (tmp_path / "run").exists()


def test_loading_tells_of_models_that_differ_in_what_no_file_holds(blobs, quick, tmp_path):
    for how in ("attribute", "unsaved buffer", "buffer"):
        ge.fit(partial(Fixed, how), blobs, size=2, **quick).save(tmp_path / how)
    for how in ("attribute", "unsaved buffer"):
        with pytest.warns(UserWarning, match="differ in 'features'"):
            ge.Ensemble.load(tmp_path / how, partial(Fixed, how))
    assert len(ge.Ensemble.load(tmp_path / "buffer", partial(Fixed, "buffer"))) == 2  # without a warning
