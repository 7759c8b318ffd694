import base64
import io

import numpy as np
from PIL import Image

from greedy_ensembles.report.page.pictures import coloured, galleries


def decoded(address):
    prefix, _, content = address.partition(",")
    assert prefix == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_galleries_are_the_extremes_and_a_lot_by_the_last_method_with_the_scores_of_all():
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), np.uint8)
    scores = {"one": np.arange(30.0), "other": np.arange(30.0)[::-1]}
    certain, uncertain, _ = found = galleries(images, "things", scores, "mutual information", count=6)
    assert certain.title == "Most certain: the lowest mutual information"
    assert uncertain.title == "Least certain: the highest mutual information"
    for gallery in found:
        assert len(gallery.pictures) == 6
        for picture in gallery.pictures:
            index = int(float(picture.lines[0]))
            assert picture.lines[1] == f"{29 - index:.3f}"
            assert picture.alt == f"Image {index} of things; score: one {index:.3f}, other {29 - index:.3f}"
            assert np.array_equal(decoded(picture.address), images[index].transpose(1, 2, 0))
    by_last = [[float(picture.lines[1]) for picture in gallery.pictures] for gallery in found]
    assert by_last[:2] == [[0, 1, 2, 3, 4, 5], [29, 28, 27, 26, 25, 24]]
    assert by_last[2] == sorted(by_last[2])
    assert not set(by_last[2]) <= {*by_last[0], *by_last[1]}  # the usual is not the extreme


def test_grey_images_and_fewer_than_asked_for():
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 4), np.uint8)
    found = galleries(images, "grey", {"one": np.array([0.3, 0.1, 0.2])}, "score")
    shown = [[picture.lines[0] for picture in gallery.pictures] for gallery in found]
    assert shown == [["0.100", "0.200", "0.300"], ["0.300", "0.200", "0.100"], ["0.100", "0.200", "0.300"]]
    assert np.array_equal(decoded(found[0].pictures[0].address), images[1, 0])


def test_a_map_has_its_first_row_at_the_bottom_and_its_top_in_the_last_colour():
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    colours = [(0, 0, 0), (50, 50, 50), (100, 100, 100), (150, 150, 150), (200, 200, 200)]
    picture = decoded(coloured(values, colours, top=4.0))[:, :, 0]
    assert picture.tolist() == [[100, 200], [0, 50]]
    assert decoded(coloured(np.zeros((2, 2)), colours, top=0.0)).max() == 0
