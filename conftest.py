"""What pytest leaves out, and how it tells of tests that were skipped: counted by reason, not listed."""

import importlib.util
from collections import Counter

collect_ignore_glob = (
    []
    if importlib.util.find_spec("triton")  # without their compiler kernels cannot be imported
    else ["src/greedy_ensembles/engines/norm_kernels.py"]
)


def pytest_terminal_summary(terminalreporter):
    """Say why tests were skipped, and how many for each reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
