"""Image sets: the published ones, any folder or array of your own, and synthetic ones, all as one small thing; tables.

`load` takes a name and finds the files in the data folder (GREEDY_ENSEMBLES_DATA, else a cache folder); `read` takes
the path of a folder, an archive or an array, and `read_parts` that of a folder with train, val and test in it;
`make_noise` makes the synthetic sets. Each returns an `ImageSet`, and `read_table` of a CSV file a `TableSet`; `ge.fit`
takes either. `greedy-ensembles data` lists, downloads and checks the published sets.
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
