from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, STUDY = ROOT / "docs" / "theory.md", ROOT / "results" / "guarantee" / "guarantee.md"


@pytest.mark.skipif(not (DOCS.exists() and STUDY.exists()), reason="only a checkout has the docs and the results")
def test_the_docs_quote_the_study_as_it_is() -> None:
    quoted = [line for line in DOCS.read_text().splitlines() if "| expectation" in line or "| point estimate |" in line]
    assert len(quoted) == 15
    assert set(quoted) <= set(STUDY.read_text().splitlines())
