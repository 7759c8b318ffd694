import pytest
import torch

from greedy_ensembles.method import Bank, draw_samples


def test_rows_come_back_in_order_at_the_samples_asked_for():
    bank = Bank(torch.randn(5, 3), capacity=3, classes=2)
    rows = [torch.randn(5, 2), torch.randn(5, 2)]
    assert bank.at(torch.tensor([0, 1])).shape == (0, 2, 2)
    for row in rows:
        bank.append(row)
    chosen = torch.tensor([4, 0, 4])
    assert len(bank) == 2
    moved = bank.to(torch.device("cpu", 0))  # by another name, which is enough to make a copy
    for one in (bank, moved, moved.to(moved.device)):
        assert torch.equal(one.at(chosen), torch.stack([row[chosen] for row in rows]))
    moved.append(rows[0])
    assert (len(moved), len(bank), moved.row_shape) == (3, 2, (5, 2))
    assert bank.to(torch.device("cpu")) is bank


class Drawing:
    """So many samples fewer than were asked for, with a number in the last of them."""

    def __init__(self, fewer, number):
        self.fewer, self.number = fewer, number

    def sample(self, n, generator):
        x = torch.zeros(n - self.fewer, 2)
        x[-1, 1] = self.number
        return x


@pytest.mark.parametrize(("fewer", "number"), [(1, 0.0), (0, torch.nan), (0, torch.inf)])
@pytest.mark.parametrize("count", [3, 2000])
def test_a_set_that_is_too_small_or_not_finite_is_refused(count, fewer, number):
    assert torch.equal(draw_samples(Drawing(0, 7.0), count, 0)[-1], torch.tensor([0.0, 7.0]))
    with pytest.raises(ValueError, match=f"weighting must draw {count} finite samples"):
        draw_samples(Drawing(fewer, number), count, 0)
