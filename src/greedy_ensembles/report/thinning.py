"""Fewer points for the same picture of a curve.

A curve of 100,000 points is a vector file of megabytes in which no more can be seen than in one of a few thousand. A
plot of a finite width shows of each of its columns where the curve comes in, its lowest and highest value, and where it
goes out: those points are kept, the others dropped.
"""

import numpy as np

#: Columns over the unit interval: in a panel of two inches, each is a tenth of a point, and a line thirteen of them.
COLUMNS = 1600


def thin(x: np.ndarray, y: np.ndarray, columns: int = COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a curve with x ascending in [0, 1] that make a picture: four for each column at most.

    >>> x = np.linspace(0, 1, 1001)
    >>> thinned, _ = thin(x, np.sin(40 * x), columns=10)
    >>> len(thinned)
    33
    """
    if len(x) <= 4 * columns:
        return x, y
    column = np.minimum((x * columns).astype(np.int64), columns - 1)
    edges = np.flatnonzero(np.diff(column, prepend=-1, append=columns))
    by_height = np.lexsort((y, column))  # the columns stay where they are, each sorted by y
    kept = np.unique(np.concatenate([edges[:-1], edges[1:] - 1, by_height[edges[:-1]], by_height[edges[1:] - 1]]))
    return x[kept], y[kept]
