"""JSON that every program can read: what is infinite, which the format has no number for, is written as a string."""

import json
import math
from typing import Any


def to_json_text(content: Any) -> str:
    """Return JSON, with a line for each item.

    >>> print(to_json_text({"nll": math.inf, "seeds": (0, 5)}), end="")
    {
      "nll": "inf",
      "seeds": [
        0,
        5
      ]
    }
    """
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
