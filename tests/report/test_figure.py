import gc
import subprocess
import sys
import weakref

import pytest
from matplotlib._pylab_helpers import Gcf

from greedy_ensembles.report.figure import entitle, method_styles, new_figure, write_figure


def small():
    figure = new_figure(height=2, width=3)
    figure.subplots().plot([0, 1], [1, 0])
    entitle(figure, "title", "caption")
    return figure


def test_a_long_caption_takes_no_room_from_the_panels():
    heights = []
    for caption in ("short", "a word or two " * 60):
        figure = new_figure(height=3, width=5)
        axis = figure.subplots()
        entitle(figure, "title", caption)
        figure.canvas.draw()
        heights.append(axis.get_window_extent().height)
    assert heights[1] > 0.8 * heights[0]  # three lines have room in every figure


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".PNG", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_ending_says_the_kind(tmp_path, ending, start):
    path = tmp_path / "new" / f"picture{ending}"
    write_figure(small(), path)
    assert path.read_bytes().startswith(start)


def test_svg(tmp_path):
    write_figure(small(), tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text()[:1000]


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_the_same_figure_is_the_same_bytes(tmp_path, ending):
    for name in "ab":
        write_figure(small(), tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_the_time_of_writing_is_in_no_file(tmp_path):
    write_figure(small(), tmp_path / "picture.pdf")
    write_figure(small(), tmp_path / "picture.svg")
    assert b"CreationDate" not in (tmp_path / "picture.pdf").read_bytes()
    assert "dc:date" not in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize("name", ["picture", "picture.jpg", "picture.pgn"])
def test_other_endings_are_refused_before_anything_is_made(tmp_path, name):
    with pytest.raises(ValueError, match=r"ending of path must be one of '.png', '.pdf', '.svg'; got"):
        write_figure(small(), tmp_path / "new" / name)
    assert not (tmp_path / "new").exists()


def test_no_font_that_journals_refuse(tmp_path):
    write_figure(small(), tmp_path / "picture.pdf")
    assert b"/Type3" not in (tmp_path / "picture.pdf").read_bytes()


def test_no_figure_stays_behind(tmp_path):
    figure = small()
    write_figure(figure, tmp_path / "picture.png")
    gone = weakref.ref(figure)
    del figure
    gc.collect()
    assert gone() is None
    assert not Gcf.get_all_fig_managers()


def test_pyplot_is_never_loaded():
    modules = ("ablation", "detection", "gallery", "radar", "page")
    code = "import sys; " + "; ".join(f"import greedy_ensembles.report.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"{code}; assert 'matplotlib.pyplot' not in sys.modules"], check=True)


def test_styles_differ():
    assert len(set(method_styles(60))) == 60
    first = method_styles(4)
    for part in ("colour", "dashes", "marker"):  # in grey, dashes and markers must do
        assert len({getattr(style, part) for style in first}) == 4
    assert method_styles(2) == first[:2]
