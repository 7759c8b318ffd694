import gc
import weakref

from matplotlib._pylab_helpers import Gcf

from greedy_ensembles.report.figure import entitle, method_styles, new_figure, write_figure


def small():
    figure = new_figure(height=2, width=3)
    figure.subplots().plot([0, 1], [1, 0])
    entitle(figure, "title")
    return figure


def test_the_same_figure_is_the_same_bytes_and_folders_are_made(tmp_path):
    for name in "ab":
        write_figure(small(), tmp_path / "new" / f"{name}.png")
    first, second = ((tmp_path / "new" / f"{name}.png").read_bytes() for name in "ab")
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_no_figure_stays_behind(tmp_path):
    figure = small()
    write_figure(figure, tmp_path / "picture.png")
    gone = weakref.ref(figure)
    del figure
    gc.collect()
    assert gone() is None
    assert not Gcf.get_all_fig_managers()


def test_styles_differ():
    assert len(set(method_styles(60))) == 60
    first = method_styles(4)
    for part in ("colour", "linestyle", "marker"):  # in grey, dashes and markers must do
        assert len({getattr(style, part) for style in first}) == 4
    assert method_styles(2) == first[:2]
