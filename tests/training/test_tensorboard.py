import importlib.util

import pytest

import greedy_ensembles as ge

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs the extra greedy-ensembles[tensorboard]"
)


def curves(folder):
    """Return {chart: [(epoch, value), ...]} of one member, read back from its event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@needs_tensorboard
def test_what_is_read_back_is_what_happened(blobs, make_model, quick, tmp_path):
    heard = []
    callbacks = [ge.TensorBoard(tmp_path / "logs"), heard.append]
    ge.fit(make_model, blobs, size=2, strength=1.0, callbacks=callbacks, **quick)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["member-01", "member-02"]
    for member in (1, 2):
        mine = [event for event in heard if event.member == member]
        found = curves(tmp_path / "logs" / f"member-{member:02d}")
        names = {"loss": "loss", "validation accuracy": "validation_accuracy", "learning rate": "learning_rate"}
        if member == 2:  # the first member has no one to differ from
            names["diversity"] = "diversity"
        assert found.keys() == names.keys()
        for chart, field in names.items():
            expected = [(event.epoch, pytest.approx(getattr(event, field), rel=1e-6)) for event in mine]
            assert found[chart] == expected


@needs_tensorboard
def test_a_run_that_goes_on_goes_on_in_the_charts(blobs, make_model, quick, tmp_path):
    def interrupt(event):
        if event.epoch == 2:
            raise KeyboardInterrupt

    def fit(*callbacks):
        run = {"run_dir": tmp_path / "run", "method": "deep", "validation": 0, **quick}
        ge.fit(make_model, blobs, size=1, callbacks=[ge.TensorBoard(tmp_path / "logs"), *callbacks], **run)

    with pytest.raises(KeyboardInterrupt):
        fit(interrupt)
    assert [epoch for epoch, _ in curves(tmp_path / "logs" / "member-01")["loss"]] == [1, 2]
    fit()
    found = curves(tmp_path / "logs" / "member-01")
    assert [epoch for epoch, _ in found["loss"]] == [1, 2, 3]
    assert found.keys() == {"loss", "learning rate"}


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ge\.TensorBoard needs .*pip install 'greedy-ensembles\[tensorboard\]'"):
        ge.TensorBoard(tmp_path)
