"""``python -m greedy_ensembles`` is the command ``greedy-ensembles``."""

from greedy_ensembles.cli import main

if __name__ == "__main__":
    main()
