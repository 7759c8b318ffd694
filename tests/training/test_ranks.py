"""Members shared out over processes that `torchrun` starts: the result is that of one process, bit for bit."""

import json
import os
import socket
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.engines.groups import build
from tests.training import ranks_script
from torch import distributed

import greedy_ensembles as ge
from greedy_ensembles.engines.execution import Exchange, Ranks, backend_for
from greedy_ensembles.sweeps.executor import Processes, at_once
from greedy_ensembles.training.shared import SharedAlgorithm

SCRIPT = Path(ranks_script.__file__)
NEEDS_A_GPU = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_A_GPU)]


def interrupt(_):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def in_one():
    """What one process makes of every case, and how often a network passed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found, passes = {}, {}
    for case, options in ranks_script.CASES.items():
        ranks_script.CALLS["passes"] = 0
        found[case] = ranks_script.predictions(ranks_script.fit(**options))
        passes[case] = ranks_script.CALLS["passes"]
    torch.set_num_threads(threads)
    return found, passes


def test_the_result_is_that_of_one_process(in_one, tmp_path):
    """Five members do not go into two; each process takes the steps of its own, and has all of them at the end."""
    expected, passes = in_one
    ranks_script.fit(size=2, run_dir=tmp_path / "finished")
    with pytest.raises(KeyboardInterrupt):  # after the first epoch of one member
        ranks_script.fit(**ranks_script.CASES["deep"], run_dir=tmp_path / "under-way", callbacks=[interrupt])
    table = "\n".join(f"{torch.sin(torch.tensor(float(k * k))):.3f},{k % 2}" for k in range(60))
    (tmp_path / "table.csv").write_text(f"x,class\n{table}\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT, tmp_path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    cases = [*expected, "refused", "command"]
    done = subprocess.run([*command, *cases], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (said,) = done.stdout.splitlines()  # the command speaks with one voice
    assert said.startswith(f"3 members in {tmp_path / 'command'}, each right on ")
    assert [done.stderr.count(word) for word in ("warning", "table.csv, held out", "epoch 34/34")] == [1, 1, 3]
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in (0, 1)]
    for rank in (0, 1):
        found = torch.load(tmp_path / f"found-{rank}.pt")
        assert found.keys() == expected.keys()
        for case, probs in found.items():
            assert torch.equal(probs, expected[case]), (case, rank)
        refused = {name: right for name, right in told[rank].items() if name not in expected}
        of_folders = ["members that are left", "go on with one process"]
        of_arguments = ["concurrent", "one process", "start fewer", "members_at_once"]
        of_arguments += ["seed", ": data", "schedule", "size"]
        assert refused == dict.fromkeys([*of_arguments, *of_folders], True)
    for case in ("greedy", "repulsive", "deep"):
        assert [one[case] for one in told] == [passes[case] // 5 * 3, passes[case] // 5 * 2]


def start(folder, world, fail=at_once, **variables):
    """Train in so many processes as torchrun starts them, but for its own end when one of them dies."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    ranks = {str(rank): {"RANK": str(rank), **meet, **variables} for rank in range(world)}
    jobs = {rank: partial(ranks_script.take_part, folder, own) for rank, own in ranks.items()}
    Processes(places=(None,) * world).run(jobs, print, fail)


def test_four_processes_make_what_one_makes(in_one, tmp_path):
    start(tmp_path, 4)
    for rank in range(4):
        assert torch.equal(torch.load(tmp_path / f"found-{rank}.pt")["resumed"], in_one[0]["greedy"])


def test_a_process_that_dies_ends_the_others_and_fewer_go_on(in_one, tmp_path):
    """Four processes, the last of which is killed in its second epoch; then two, which go on from there."""
    failures = {}
    start(tmp_path, 4, failures.__setitem__, DIES="3")
    assert "ended by signal 9" in str(failures.pop("3"))
    assert failures.keys() == {"0", "1", "2"}
    assert all(isinstance(error, ConnectionError) and "run_dir" in str(error) for error in failures.values()), failures
    assert (tmp_path / "run/checkpoint.safetensors").exists()
    start(tmp_path, 2)
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text())["resumed"] for rank in (0, 1)]
    assert told == [[[member, epoch, 5 * (epoch - 1) + member] for epoch in (2, 3) for member in range(1, 6)], []]
    for rank in (0, 1):
        assert torch.equal(torch.load(tmp_path / f"found-{rank}.pt")["resumed"], in_one[0]["greedy"])
    whole = ge.load_run(tmp_path / "run", ranks_script.Net)
    assert torch.equal(ranks_script.predictions(whole.ensemble), in_one[0]["greedy"])


@pytest.mark.parametrize("device", DEVICES)
def test_two_processes_share_a_device(device, tmp_path):
    """In plain steps and, on a GPU, in recorded ones."""
    jobs = {str(rank): partial(ranks_script.share_a_device, device, tmp_path, rank) for rank in (0, 1)}
    found = Processes(places=(None, None)).run(jobs, print)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = ranks_script.fit_plainly(device)
    torch.set_num_threads(threads)
    for plain, recorded in found.values():
        assert torch.equal(plain, expected)
        assert device == "cpu" or torch.equal(recorded, ranks_script.fit_recorded())


@pytest.mark.parametrize("device", DEVICES)
def test_one_process_exchanges_with_itself(device, tmp_path):
    """By gloo, and on a GPU by NCCL, as processes do that `torchrun` started."""
    outputs, meeting = torch.rand(3, 4, 2, device=device), f"file://{tmp_path}/meeting"
    distributed.init_process_group(backend_for(torch.device(device)), meeting, world_size=1, rank=0)
    try:
        assert torch.equal(Exchange(Ranks(), 3)(outputs), outputs)
    finally:
        distributed.destroy_process_group()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("method", ["greedy", "repulsive", "deep"])
def test_recorded_halves_with_nccl_between_them_take_the_steps_of_one_recording(method, tmp_path):
    weighting = None if method == "deep" else ge.weighting.Gaussian(0.0, 3 * torch.ones(1, 6, 6))
    recipe = ge.Recipe(epochs=2, batch_size=16, lr=0.05, deterministic=True)
    options = {"size": 3, "method": method, "strength": 0.5, "weighting": weighting, "recipe": recipe}
    weights = []
    distributed.init_process_group("nccl", f"file://{tmp_path}/meeting", world_size=1, rank=0)
    try:
        for shared in (False, True):
            algorithm = build(ranks_script.Net, ranks_script.data(), device="cuda", validation=0.2, **options)
            if shared:
                algorithm = SharedAlgorithm(**vars(algorithm), ranks=Ranks())
            with algorithm.execution.settings(), warnings.catch_warnings():
                warnings.filterwarnings("error", "trained step by step")
                done = algorithm.train(None, lambda events: None)
            weights.append([value for one in done for value in one.model.state_dict().values()])
    finally:
        distributed.destroy_process_group()
    assert len(weights[0]) == len(weights[1]) > 0
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_members_are_shared_out_evenly():
    for world in range(1, 9):
        for count in range(world, 20):
            shares = Ranks(0, world).shares(count)
            assert [k for share in shares for k in range(count)[share]] == list(range(count))
            sizes = [share.stop - share.start for share in shares]
            assert max(sizes) - min(sizes) <= 1


def test_a_connection_that_breaks_without_a_word_is_told_all_the_same(monkeypatch):
    def breaks(*_):
        raise RuntimeError

    monkeypatch.setattr(distributed, "all_gather_object", breaks)
    with pytest.raises(ConnectionError, match=r"another process of this training ended.*\(RuntimeError\)"):
        Ranks(0, 2).gather("anything")
