"""Image sets: the published ones, any folder or array of your own, and synthetic ones, all as one small thing.

`load` takes a name and finds the files in the data folder (GREEDY_ENSEMBLES_DATA, else a cache folder); `read` takes
the path of a folder, an archive or an array; `make_noise` makes the synthetic sets. Each returns an `ImageSet`, whose
images and labels `ge.fit` takes as they are. `greedy-ensembles data` lists, downloads and checks the
published sets.
"""

from greedy_ensembles.data.image_set import ImageSet
from greedy_ensembles.data.noise import make_noise
from greedy_ensembles.data.registry import data_root, load, read
from greedy_ensembles.data.sets import SETS

__all__ = ["SETS", "ImageSet", "data_root", "load", "make_noise", "read"]
