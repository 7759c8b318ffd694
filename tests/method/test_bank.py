import torch

from greedy_ensembles.method import Bank


def test_rows_come_back_in_order_at_the_samples_asked_for():
    bank = Bank(torch.randn(5, 3), capacity=3, classes=2)
    rows = [torch.randn(5, 2), torch.randn(5, 2)]
    assert bank.at(torch.tensor([0, 1])).shape == (0, 2, 2)
    for row in rows:
        bank.append(row)
    chosen = torch.tensor([4, 0, 4])
    assert len(bank) == 2
    assert torch.equal(bank.at(chosen), torch.stack([row[chosen] for row in rows]))
