"""Damage every kind of file that is read, at random but from a seed, and accept a result or a ValueError that names it.

    python -m tests.fuzz --count 30             # so many damages to each kind of file
    python -m tests.fuzz --seconds 14400        # from one seed to the next, for hours (make fuzz)

A child process reads, with limits of memory and of time, so that a crash or a hang is a finding like any other. What is
found is printed as a line: the reader, the seed and number that make it again, and what happened.
"""

import argparse
import contextlib
import faulthandler
import gzip
import io
import pickle
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

from tests.damage import File, Folder
from tests.data.conftest import make_tar, make_zip

SECONDS = 120  # for one file, on however busy a machine
MEMORY = 1 << 30  # bytes beyond what the libraries take
LIMITS = {"expanded": 1 << 26, "picture": 1 << 22, "pixels": 1 << 22, "seconds": SECONDS // 2}


def readers(home: Path):
    """Return what is damaged and read, by name; whole files are written to `home`."""
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8)
    return {**files_of_data(home, images), **folders_of_data(home, images), **folders_of_runs(home)}


def files_of_data(home: Path, images):
    """Return the readers of files that data come in."""
    import numpy as np
    from scipy.io import savemat

    import greedy_ensembles as ge
    from greedy_ensembles.benchmark.packing import pack_predictions, unpack_predictions
    from greedy_ensembles.benchmark.predictions import Predictions
    from greedy_ensembles.cli.given import ImageForm, read_inputs
    from greedy_ensembles.data import archives, cifar, formats, picture_sets
    from greedy_ensembles.data.picture_sets import Look
    from greedy_ensembles.data.tables import read_table

    def written(write, *arguments, **options) -> bytes:
        buffer = io.BytesIO()
        write(buffer, *arguments, **options)
        return buffer.getvalue()

    pictures = _pictures(images)
    idx = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()
    mat = {"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    batch = {b"data": images.reshape(-1)[: 3072 // 12].repeat(12)[None], b"labels": [3], b"filenames": [b"a.png"]}
    names = pickle.dumps({b"fine_label_names": [b"apple", b"bee"]}, 2)
    packed = Predictions("x", np.log(np.full((2, 5, 2), 0.5, np.float32)), np.zeros(5, np.int64))
    (file,) = pack_predictions(home / "packed.npz", packed, [packed], information={"size": 2})
    few = dict(list(pictures.items())[:3])
    long = {f"{'long' * 40}/{name}": content for name, content in few.items()}
    tars = [make_tar(home / "tar", long, mode).read_bytes() for mode in ("w", "w:gz", "w:bz2", "w:xz")]
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    zips = [make_zip(home / "zip", few, kind).read_bytes() for kind in kinds]
    savers = (np.savez, np.savez_compressed)
    arrays = [images, images[..., None], images.astype(np.float64), images.astype(">i4"), np.asfortranarray(images)]
    npy = [written(np.save, array) for array in arrays]
    npz = [written(save, x=images, y=np.arange(3)) for save in savers]
    mats = [written(savemat, mat, do_compression=small) for small in (False, True)]
    table = b"a,b,c\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n"

    def given(path: Path):
        form = ImageForm(None if path.suffix == ".npy" else (3, 8, 8), None)
        return read_inputs([path], form, columns=["a", "b"])

    return {
        "picture": File("a.png", list(pictures.values()), lambda path: picture_sets.read_folder(path.parent, Look(8))),
        "folder of pictures": File("a.png", list(pictures.values()), lambda path: ge.data.read(path.parent)),
        "npy": File("a.npy", npy, ge.data.read),
        "npz": File("a.npz", npz, ge.data.read),
        "idx": File("a.idx", [idx], formats.read_idx),
        "idx.gz": File("a.gz", [gzip.compress(idx)], formats.read_idx),
        "mat": File("a.mat", mats, formats.read_svhn),
        "pickle": File("batch", [pickle.dumps(batch, protocol) for protocol in (2, 3, 4)], cifar.read_python),
        "names in a pickle": File("meta", [names], cifar.read_class_names),
        "names in a text": File("meta.txt", [b"apple\nbee\n"], cifar.read_class_names),
        "binary batch": File("a.bin", [bytes(2 * 3073)], partial(cifar.read_binary, label_bytes=1)),
        "tar": File("a.tar", tars, lambda path: picture_sets.read_folder(path, Look(8))),
        "zip": File("a.zip", zips, lambda path: picture_sets.read_folder(path, Look(8))),
        "unpacked": File("a.tgz", tars + zips, lambda path: archives.unpack(path, path.parent / "unpacked")),
        "table": File("a.csv", [table], partial(read_table, target="c")),
        "packed predictions": File("a.npz", [file.read_bytes()], unpack_predictions),
        "arrays to predict": File("a.npy", npy, given),
        "tables to predict": File("a.csv", [table], given),
        "pictures to predict": File("a.zip", zips, given),
    }


def folders_of_data(home: Path, images):
    """Return the readers of folders that data come in."""
    import lmdb
    import numpy as np

    import greedy_ensembles as ge
    from greedy_ensembles.data import cifar, registry
    from greedy_ensembles.data.picture_sets import Look

    pictures = list(_pictures(images).values())[:6]
    (home / "cifar").mkdir()
    np.save(home / "cifar" / "fog.npy", images.repeat(3).reshape(-1, 4, 3, 3))
    np.save(home / "cifar" / "labels.npy", np.arange(images.size * 3 // 36) % 10)
    (home / "tiny" / "images").mkdir(parents=True)
    (home / "tiny" / "val_annotations.txt").write_text("0.png\tn01\t0\n1.png\tn02\t0\n")
    with lmdb.open(str(home / "lmdb")) as database, database.begin(write=True) as transaction:
        for number, content in enumerate(pictures):
            (home / "tiny" / "images" / f"{number}.png").write_bytes(content)
            place = home / "own" / ("test" if number > 3 else "train") / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.png").write_bytes(content)
            transaction.put(str(number).encode(), content)
    return {
        "CIFAR-10-C": Folder("c", [home / "cifar"], lambda path: cifar.read_corrupted(path, "fog", 1)),
        "Tiny ImageNet": Folder("tiny", [home / "tiny"], lambda path: registry.read_tiny_imagenet(path, Look(8))),
        "LSUN": Folder("lmdb", [home / "lmdb"], lambda path: registry.read_lsun(path, Look(8))),
        "own pictures": Folder("own", [home / "own"], lambda path: ge.data.read_parts(path, 8)),
    }


def folders_of_runs(home: Path):
    """Return the readers of what this package writes."""
    import torch

    import greedy_ensembles as ge
    from greedy_ensembles.benchmark.stored_runs import evaluate_run, kept_beside_the_run, open_runs
    from greedy_ensembles.cli.predict import open_saved
    from greedy_ensembles.paper.records import Record, Records, gather
    from greedy_ensembles.paper.study import Case, Protocol, Section, Study, jobs
    from greedy_ensembles.report.page.build import build_page
    from greedy_ensembles.saving import write_held_out

    make_model = partial(ge.models.MLP, 2, hidden=(3,))
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)).double()
    y = (x[:, 0] > 0).long()
    rows = ge.data.TableSet(x.numpy(), y.numpy(), "own", ("no", "yes"), columns=("a", "b"), target="c")

    def fit(folder: Path, **options):
        recipe = ge.Recipe(epochs=2, batch_size=20)
        return ge.fit(make_model, rows, size=2, run_dir=folder, recipe=recipe, progress=False, device="cpu", **options)

    def stop(event) -> None:
        if event.member == 2:
            raise KeyboardInterrupt

    def use(path: Path):
        return open_saved(path, make_model if (path / "ensemble.json").exists() else None).ensemble.predict_proba(x)

    def evaluate(path: Path):
        (run,) = open_runs([path], kept_beside_the_run())
        return evaluate_run(run, "mutual_information")

    ensemble = fit(home / "run")
    ensemble.calibrate(x, fpr=0.2)
    ensemble.save(home / "saved")
    calibration = ensemble.calibration
    assert calibration is not None
    calibration.write(home / "run", open_saved(home / "run").weights)
    with contextlib.suppress(KeyboardInterrupt):
        fit(home / "begun", callbacks=[stop])
    assert (home / "begun" / "checkpoint.safetensors").exists()
    shutil.copytree(home / "run", home / "judged")
    write_held_out(home / "judged", rows)
    evaluation = evaluate(home / "judged")  # which leaves its predictions
    cases = (Case("mnist", "PreResNet8", 2, epochs=1),)
    study, protocol = Study("tiny", "Tiny", "table", (Section("M = 2", cases),), seeds=1), Protocol(quick=True)
    (job,) = jobs(study, protocol)
    information = ge.load_run(home / "run").information
    Records(home / "study").write(
        Record(job.name, "done", information=information, evaluation=evaluation.without_scores())
    )
    return {
        "saved ensemble": Folder("saved", [home / "saved"], use),
        "run": Folder("run", [home / "run"], use),
        "report": Folder("run", [home / "run"], lambda path: build_page([ge.load_run(path)])),
        "evaluation": Folder("run", [home / "judged"], evaluate),
        "study": Folder("study", [home / "study"], lambda path: gather(study, protocol, Records(path))),
        "begun run": Folder("run", [home / "begun", home / "run"], fit),
    }


def _pictures(images) -> dict[str, bytes]:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(images.transpose(1, 2, 0))
    found = {}
    for kind, options in (
        *(("PNG", {"exif": exif}), ("JPEG", {"exif": exif}), ("WEBP", {"exif": exif}), ("GIF", {}), ("BMP", {})),
        *(("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"exif": exif}), ("PPM", {}), ("EPS", {}), ("ICO", {})),
    ):
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        found[f"c/{len(found)}.png"] = buffer.getvalue()
    return found


def read_damaged(reader, folder: Path, dice: random.Random) -> str:
    """Damage a file and read it; return what is wrong with how that ended, or nothing."""
    path = reader.damaged(folder, dice)
    try:
        reader.read(path)
    except ValueError as error:
        named = any(str(file) in str(error) for file in (path, folder, *path.rglob("*")))
        return "" if named else f"a message that does not name the file: {error!r}"
    except BaseException as error:
        return repr(error)[:300]
    return ""


def child(seed: int, count: int, only: str, place: Path) -> None:
    """Read damaged files, and print what goes wrong; `place` says at any time which file is being read."""
    import torch

    import greedy_ensembles as ge

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home, ge.limits(**LIMITS):
        known = readers(Path(home))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
        for name, reader in known.items():
            few = isinstance(reader, Folder) or name == "unpacked"
            for number in range(count // 4 if few else count) if only in ("", name) else ():
                place.write_text(f"{name}, seed {seed}, number {number}")
                faulthandler.dump_traceback_later(SECONDS, exit=True)  # wherever it hangs, outside of Python as well
                with tempfile.TemporaryDirectory(prefix="damaged-") as folder:
                    wrong = read_damaged(reader, Path(folder), random.Random(f"{name} {seed} {number}"))
                faulthandler.cancel_dump_traceback_later()
                if wrong:
                    print(f"{place.read_text()}: {wrong}", flush=True)


def find(seed: int, count: int, only: str = "") -> list[str]:
    """Return what goes wrong with so many damaged files of each kind, from a seed."""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home) / "place"
        place.write_text("the start")
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--child", str(place)]
        command += ["--seed", str(seed), "--count", str(count), "--only", only]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
        found = done.stdout.splitlines()
        if done.returncode:
            found.append(f"{place.read_text()}: the process ended with {done.returncode}: {done.stderr[-2000:]}")
    return found


def main() -> None:
    """Search until the time is over, or once."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", default="", help="one kind of file")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.seed, given.count, given.only, given.child)
        return
    end, seed, failed = time.monotonic() + given.seconds, given.seed, False
    while seed == given.seed or time.monotonic() < end:
        for line in find(seed, given.count, given.only):
            print(line, flush=True)
            failed = True
        seed += 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
