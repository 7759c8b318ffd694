"""The page as a file: whole, escaped, and in need of nothing else. What a browser makes of it is in test_chromium."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

import greedy_ensembles as ge
from greedy_ensembles.report.figure import draw_chart
from greedy_ensembles.report.page import Evaluated, OodView, Part, Picture, TrainedRun, render, write_page
from greedy_ensembles.report.page.build import Findings, build_page
from greedy_ensembles.report.table import Column, Entry, Table

HOSTILE = "\"><script>alert('x')</script><img src=x onerror=alert(1)> {{ 7 * 7 }} & 'quoted'"
_VOID = {"meta", "img", "input", "image", "path", "line", "circle", "stop", "rect", "br"}


class Reader(HTMLParser):
    """Collects elements and text, and holds that every element is closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in _VOID or (tag == "path" and not self.get_starttag_text().endswith("/>")):
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def hostile_parts():
    def draw(axis):
        axis.plot([1.0, 2.0], [1.0, 2.0], gid=HOSTILE)

    chart = draw_chart(HOSTILE, HOSTILE, draw, x_label=HOSTILE, y_label=HOSTILE)
    table = Table(HOSTILE, [Column(HOSTILE)], [{HOSTILE: Entry(HOSTILE)}])
    gallery = {HOSTILE: [Picture("data:image/png;base64,", HOSTILE, [HOSTILE])]}
    run = TrainedRun(HOSTILE, HOSTILE, [chart], [HOSTILE], HOSTILE)
    view = OodView(HOSTILE, HOSTILE, [chart], gallery)
    evaluated = Evaluated([table], [HOSTILE], [HOSTILE], [view], gallery)
    return [Part(HOSTILE, "part-1", table, table, [run], [HOSTILE], evaluated, [(chart, HOSTILE)])]


@pytest.fixture(scope="module")
def hostile():
    return render(hostile_parts())


def test_hostile_text_stays_text_wherever_it_stands(hostile):
    read = Reader(hostile)
    tags = [tag for tag, _ in read.elements]
    assert tags.count("script") == 1
    assert not any(attributes.get("src") == "x" for _, attributes in read.elements)
    assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert not any("style" in attributes for _, attributes in read.elements)
    assert HOSTILE in "".join(read.texts)  # and is shown as it is
    shown = sum(HOSTILE in text for text in read.texts)
    held = sum(value == HOSTILE for _, attributes in read.elements for value in attributes.values())
    assert shown >= 15
    assert held >= 8


def test_the_policy_allows_this_style_and_this_script_alone(hostile):
    policy = next(a["content"] for tag, a in Reader(hostile).elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", hostile, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_nothing_is_fetched_from_anywhere(hostile):
    assert not re.search(r"https?:|//[a-z]", re.sub(r"^\s*//.*$|base64,\S*", "", hostile, flags=re.M))
    for _, attributes in Reader(hostile).elements:
        for name in ("src", "href"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:"))
    assert set(re.findall(r"url\((.)", hostile)) <= {"#"}
    assert "@import" not in hostile


def test_every_picture_says_what_is_to_be_seen(hostile):
    found = 0
    for tag, attributes in Reader(hostile).elements:
        if tag == "img":
            assert attributes["alt"]
            found += 1
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
            found += 1
    assert found > 6


def test_addresses_within_the_page_lead_somewhere(hostile):
    elements = Reader(hostile).elements
    identifiers = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    for tag, attributes in elements:
        if tag == "a":
            assert attributes["href"].removeprefix("#") in identifiers


def test_a_run_makes_a_page(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=2, strength=1.0, run_dir=tmp_path / "<b>run</b>", **quick)
    run = ge.load_run(tmp_path / "<b>run</b>", make_model)
    page = build_page([run], {f"arrays {run.configuration['data'][:8]}": Findings(notes=["a <note>"])})
    write_page(page, tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text()
    read = Reader(text)
    assert "b" not in [tag for tag, _ in read.elements]
    assert "a <note>" in "".join(read.texts)
    assert text == render(page)  # the same page from the same runs
    assert len(page[0].maps) == 1
