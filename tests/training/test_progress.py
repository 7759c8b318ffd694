import io

from rich.console import Console

import greedy_ensembles as ge
from greedy_ensembles.training.events import Epoch, ProgressBars


def event(member, epoch):
    return Epoch(
        member=member, size=3, epoch=epoch, epochs=10, learning_rate=0.1, loss=0.1234, diversity=None,
        validation_accuracy=None, validation_score=None, seconds=1.0, done=(member - 1) * 10 + epoch, model=None,
    )  # fmt: skip


def test_the_bar_shows_member_epoch_loss_and_time_left():
    screen = io.StringIO()
    bars = ProgressBars(Console(file=screen, force_terminal=True, width=120))
    with bars:
        bars.show(event(1, 9))
        bars.show(event(2, 4))
        task = bars._bars.tasks[0]
        assert (task.completed, task.total) == (14, 30)
        bars._bars.refresh()
    shown = screen.getvalue()
    assert "member 2/3  epoch 4/10  loss 0.1234" in shown
    assert "training" in shown
    assert ":" in shown.split("loss 0.1234")[-1]  # the time left


def test_each_run_has_its_own_bar():
    bars = ProgressBars(Console(file=io.StringIO(), force_terminal=True))
    with bars:
        bars.show(event(1, 1), "deep")
        bars.show(event(2, 1), "greedy-1")
        bars.show(event(1, 2), "deep")
    assert [(task.description, task.completed) for task in bars._bars.tasks] == [("deep", 2), ("greedy-1", 11)]


def test_a_log_gets_a_line_for_each_member():
    log = io.StringIO()
    with ProgressBars(Console(file=log)) as bars:
        for member in (1, 2):
            for epoch in (9, 10):
                bars.show(event(member, epoch), "deep")
    assert log.getvalue().splitlines() == [f"deep: member {member}/3  epoch 10/10  loss 0.1234" for member in (1, 2)]


def test_fit_shows_it_on_standard_error_alone(blobs, make_model, capsys):
    ge.fit(make_model, blobs, size=2, method="deep", recipe=ge.Recipe(epochs=2), device="cpu")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "member 2/2  epoch 2/2  loss" in captured.err
    ge.fit(make_model, blobs, size=1, method="deep", recipe=ge.Recipe(epochs=1), device="cpu", progress=False)
    assert capsys.readouterr().err == ""
