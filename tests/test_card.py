import re

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.saving import model_card


def small():
    return ge.models.MLP(3, hidden=(4,))  # 3 * 4 + 4 + 4 * 2 + 2 = 26 parameters


def test_the_card_says_what_the_ensemble_is():
    card = model_card([small(), small(), torch.nn.Linear(3, 2)], ((0.5,), (0.25,)), {})
    assert "| Members | 3 |" in card
    assert "| Models | 2 x greedy_ensembles.models.mlp.MLP, 1 x torch.nn.modules.linear.Linear |" in card
    assert "| Parameters | 8 to 26 a member, 60 in all |" in card
    assert "mean (0.5) and standard deviation (0.25) are taken out" in card
    assert f"greedy-ensembles {ge.__version__}" in card
    assert "1,000 in all" in model_card([torch.nn.Linear(499, 2)], None, {})
    assert "mean (0, 0, 0, 0, 0, 0, 0, 0, ... 20 in all) and" in model_card([small()], ((0.0,) * 20, (1.0,) * 20), {})


def test_notes_are_lines_of_the_callers_own_and_cannot_break_the_table():
    card = model_card([small()], None, {"Test accuracy": 0.934, "Data": "one | two\nthree"})
    assert "| Test accuracy | 0.934 |" in card
    assert "| Data | one \\| two three |" in card
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_notes_bring_no_html():
    card = model_card([small()], None, {"<b>": "<script>alert(1)</script> & more"})
    assert "| &lt;b&gt; | &lt;script&gt;alert(1)&lt;/script&gt; &amp; more |" in card


def test_saving_writes_it_and_what_it_says_works(tmp_path):
    ensemble = ge.Ensemble.from_members([small(), small()])
    ensemble.save(tmp_path / "saved", notes={"Test accuracy": 0.9})
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "| Test accuracy | 0.9 |" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    names = {"make_model": small, "x": torch.randn(5, 3)}
    exec(code.replace("path of this folder", str(tmp_path / "saved")), names)
    assert names["probabilities"].shape == (5, 2)
    (tmp_path / "saved" / "README.md").unlink()  # for people alone: loading does not need it
    assert len(ge.Ensemble.load(tmp_path / "saved", small)) == 2


def test_notes_of_another_kind_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"notes must be a dict .*got 'mine'"):
        ge.Ensemble.from_members([small()]).save(tmp_path / "saved", notes="mine")
    assert list(tmp_path.iterdir()) == []
