"""What ranking a million scores costs beside one `torch.sort` of the same array.

Every figure is a ratio of best times within this run, since absolute times differ from machine to machine. The target
is at most 3 for AUROC, average precision and FPR95 together.
"""

from functools import partial

import torch
from result import in_turn

from greedy_ensembles import metrics

COUNT, REPEATS = 1_000_000, 7


def report(name: str, scores: torch.Tensor) -> None:
    """Print the ratios for one array of scores, one half of it in-domain."""
    inside, outside = scores[: COUNT // 2], scores[COUNT // 2 :]
    sort, *ranked = in_turn(
        lambda: torch.sort(scores),
        *(partial(rank, inside, outside) for rank in (metrics.auroc, metrics.average_precision, metrics.fpr_at_tpr)),
        repeats=REPEATS,
        typical=min,
    )
    ratios = [seconds / sort for seconds in ranked]
    print(f"  {name:30s} {sum(ratios):.2f}  (" + ", ".join(f"{ratio:.2f}" for ratio in ratios) + ")")


def main() -> None:
    """Print the ratios."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    print(f"{COUNT:,} scores: time of AUROC, AP and FPR95 together (and each) over torch.sort of the same array")
    for threads in (1, torch.get_num_threads()):
        torch.set_num_threads(threads)
        print(f" threads: {threads}")
        for device in devices:
            drawn = torch.randn(COUNT, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
            for dtype in (torch.float16, torch.float32, torch.float64):
                report(f"{device}, {dtype}", drawn.to(dtype))
            report(f"{device}, a thousand values", (drawn * 100).round())


if __name__ == "__main__":
    main()
