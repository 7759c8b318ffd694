"""What pytest leaves out: kernels can be imported only where their compiler is."""

import importlib.util

collect_ignore_glob = (
    []
    if importlib.util.find_spec("triton")
    else ["src/greedy_ensembles/models/*_kernels.py", "tests/models/kernel_checks.py"]
)
