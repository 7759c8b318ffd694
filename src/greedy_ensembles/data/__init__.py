"""Image sets: the published ones, any folder or array of your own, and synthetic ones, all as one small thing; tables.

`load` takes a name and finds the files in the data folder; `read` takes the path of a folder, an archive or an array,
and `read_parts` that of a folder with train, val and test in it. `ge.fit` takes what they return. `greedy-ensembles
data` lists, downloads and checks the published sets.
"""

from greedy_ensembles.data.download import data_root
from greedy_ensembles.data.image_set import ImageSet, LabelledSet
from greedy_ensembles.data.noise import make_noise
from greedy_ensembles.data.picture_sets import read, read_parts
from greedy_ensembles.data.registry import SETS, load
from greedy_ensembles.data.tables import TableSet, read_table

__all__ = [
    "SETS",
    "ImageSet",
    "LabelledSet",
    "TableSet",
    "data_root",
    "load",
    "make_noise",
    "read",
    "read_parts",
    "read_table",
]
