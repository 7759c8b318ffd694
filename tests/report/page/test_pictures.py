import base64
import io

import numpy as np
from PIL import Image

from greedy_ensembles.report.page.pictures import coloured, examples


def decoded(address):
    prefix, _, content = address.partition(",")
    assert prefix == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_examples_are_those_images_with_those_scores_in_order_of_the_last_method():
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), np.uint8)
    scores = {"one": np.arange(30.0), "other": np.arange(30.0)[::-1]}
    found = examples(images, "things", scores, count=6)
    assert len(found) == 6
    for picture in found:
        index = int(float(picture.lines[0]))
        assert picture.lines[1] == f"{29 - index:.2f}"
        assert picture.alt == f"Image {index} of things; score: one {index:.2f}, other {29 - index:.2f}"
        assert np.array_equal(decoded(picture.address), images[index].transpose(1, 2, 0))
    last = [float(picture.lines[1]) for picture in found]
    assert last == sorted(last)


def test_grey_images_and_fewer_than_asked_for():
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 4), np.uint8)
    found = examples(images, "grey", {"one": np.array([0.3, 0.1, 0.2])})
    assert [picture.lines[0] for picture in found] == ["0.10", "0.20", "0.30"]
    assert np.array_equal(decoded(found[0].address), images[1, 0])


def test_a_map_has_its_first_row_at_the_bottom_and_its_top_in_the_last_colour():
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    colours = [(0, 0, 0), (50, 50, 50), (100, 100, 100), (150, 150, 150), (200, 200, 200)]
    picture = decoded(coloured(values, colours, top=4.0))[:, :, 0]
    assert picture.tolist() == [[100, 200], [0, 50]]
    assert decoded(coloured(np.zeros((2, 2)), colours, top=0.0)).max() == 0
