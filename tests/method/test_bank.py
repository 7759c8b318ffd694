import torch

from greedy_ensembles.method import Bank


def test_rows_come_back_in_order_at_the_samples_asked_for():
    bank = Bank(capacity=3, samples=5, classes=2)
    rows = [torch.randn(5, 2), torch.randn(5, 2)]
    assert bank.at(torch.tensor([0, 1])).shape == (0, 2, 2)
    for row in rows:
        bank.append(row)
    chosen = torch.tensor([4, 0, 4])
    assert len(bank) == 2
    assert torch.equal(bank.at(chosen), torch.stack([row[chosen] for row in rows]))


def test_its_size_is_known_before_it_is_made():
    bank = Bank(capacity=3, samples=5, classes=2)
    assert Bank.nbytes(3, 5, 2) == bank._rows.nbytes
