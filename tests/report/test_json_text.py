import json
import math

import pytest

from greedy_ensembles.report.json_text import to_json_text


def test_what_is_finite_is_kept_and_the_rest_is_text():
    content = {"a": [0.1, math.inf], "b": ({"c": -math.inf},), "d": [math.nan, None, True, 3, "x"]}
    found = json.loads(to_json_text(content), parse_constant=pytest.fail)
    assert found == {"a": [0.1, "inf"], "b": [{"c": "-inf"}], "d": ["nan", None, True, 3, "x"]}
