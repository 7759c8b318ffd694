import os
import subprocess
import sys

import pytest

from greedy_ensembles import machine


def test_the_processor_is_named():
    assert machine.processor().endswith(f", {os.cpu_count()} cores")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind a process to a core")
def test_cores_are_those_that_this_process_may_use():
    bind = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
    code = f"{bind}; from greedy_ensembles import machine; print(machine.cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
