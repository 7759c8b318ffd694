"""Damage every kind of file that is read, at random but from a seed, and accept a result or a ValueError that names it.

    python tests/fuzz.py --count 30             # so many damages to each kind of file
    python tests/fuzz.py --seconds 14400        # from one seed to the next, for hours (make fuzz)

A child process reads, with limits of memory and of time, so that a crash or a hang is a finding like any other. What is
found is printed as a line: the reader, the seed and number that make it again, and what happened.
"""

import argparse
import gzip
import io
import json
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path

SECONDS = 20  # for one file
MEMORY = 1 << 30  # bytes beyond what the libraries take
LIMITS = {"expanded": 1 << 26, "picture": 1 << 22, "pixels": 1 << 22}
ODD_NUMBERS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1]
ODD_VALUES = [None, True, -1, 0, 1, 10**9, 10**400, 1.5, float("inf"), float("nan"), "", "x", "../../x", [], [[]], {}]
ODD_VALUES += [{"a": [1]}, [10**9, 10**9, 10**9], ["x"] * 3, "=1+1", "<b>", "[red]"]


def damage_bytes(content: bytes, dice: random.Random) -> bytes:
    """Return some bytes with one to four damages."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        at, length = dice.randrange(len(data) + 1), dice.choice([1, 2, 4, 8, 50])
        odd = dice.choice(ODD_NUMBERS)
        spot = slice(at, at + length)
        kind = dice.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[spot] = odd.to_bytes(8, dice.choice(["little", "big"]))[:length]
        elif kind == 2:
            del data[spot]
        elif kind == 3:
            data[at:at] = data[dice.randrange(len(data) + 1) :][: 4 * length]
        elif kind == 4:
            data[spot] = dice.randbytes(length)
        elif kind == 5 and dice.random() < 0.3:
            del data[at:]
        else:
            data[spot] = str(odd).encode()
    return bytes(data)


def damage_value(content, dice: random.Random):
    """Return what JSON holds with one value of it replaced, removed or doubled."""
    if isinstance(content, dict) and content and dice.random() < 0.85:
        key = dice.choice(sorted(content))
        if dice.random() < 0.1:
            return {name: value for name, value in content.items() if name != key}
        return {**content, key: damage_value(content[key], dice)}
    if isinstance(content, list) and content and dice.random() < 0.7:
        at = dice.randrange(len(content))
        if dice.random() < 0.2:
            return content[:at] + content[at + 1 :]
        return [*content[:at], damage_value(content[at], dice), *content[at + 1 :]]
    return dice.choice(ODD_VALUES)


class File:
    """A file of some format, in several variants, and how it is read."""

    def __init__(self, name, variants, read):
        self.name, self.variants, self._read = name, variants, read

    def damaged(self, folder: Path, dice: random.Random) -> Path:
        path = folder / self.name
        path.write_bytes(damage_bytes(dice.choice(self.variants), dice))
        return path

    def read(self, path: Path):
        return self._read(path)


class Folder(File):
    """A folder, one of whose files is damaged: JSON of ours keeps a right checksum, as that of a forger would be."""

    def damaged(self, folder: Path, dice: random.Random) -> Path:
        from greedy_ensembles import storage
        from greedy_ensembles.runs.reading import digest_of_lines

        path = folder / self.name
        shutil.copytree(dice.choice(self.variants), path)
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".md")
        file = dice.choice([*files, *(3 * [file for file in files if file.parent == path])])  # what says the most
        if file.suffix == ".json" and dice.random() < 0.9:
            value = storage.read_json(file)
            for _ in range(dice.randint(1, 3)):
                value = damage_value(value, dice)
            storage.write_json(file, value if isinstance(value, dict) else {"odd": value})
        elif file.name == "history.jsonl" and dice.random() < 0.9:
            lines = [damage_value(json.loads(line), dice) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            facts = storage.read_json(file.with_name("member.json"))
            facts["files"]["history"] = digest_of_lines(file.read_bytes())
            storage.write_json(file.with_name("member.json"), facts)
        else:
            file.write_bytes(damage_bytes(file.read_bytes(), dice))
        return path


def readers(home: Path):
    """Return what is damaged and read, by name; whole files are written to `home`."""
    import numpy as np
    import torch
    from scipy.io import savemat

    import greedy_ensembles as ge
    from greedy_ensembles.benchmark.packing import pack_predictions, unpack_predictions
    from greedy_ensembles.benchmark.predictions import Predictions
    from greedy_ensembles.cli.given import open_saved
    from greedy_ensembles.data import archives, cifar, formats, picture_sets
    from greedy_ensembles.data.tables import read_table
    from greedy_ensembles.report.page import build_page

    images = np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8)
    batch = {b"data": images.reshape(-1)[: 3072 // 12].repeat(12)[None], b"labels": [3], b"filenames": [b"a.png"]}

    def written(write, *arguments, **options) -> bytes:
        buffer = io.BytesIO()
        write(buffer, *arguments, **options)
        return buffer.getvalue()

    pictures = _pictures(images)
    idx = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in images.shape) + images.tobytes()
    mat = {"X": np.zeros((4, 4, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    make_model = partial(ge.models.MLP, 2, hidden=(3,))
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    options = {"recipe": ge.Recipe(epochs=2, batch_size=20), "progress": False, "device": "cpu"}
    ensemble = ge.fit(make_model, (x, (x[:, 0] > 0).long()), size=2, run_dir=home / "run", **options)
    ensemble.calibrate(x, fpr=0.2)
    ensemble.save(home / "saved")
    calibration = ensemble.calibration
    assert calibration is not None
    calibration.write(home / "run", open_saved(home / "run").weights)
    packed = Predictions("x", np.log(np.full((2, 5, 2), 0.5, np.float32)), np.zeros(5, np.int64))
    (file,) = pack_predictions(home / "packed.npz", packed, [packed], information={"size": 2})
    tars = [_tar(pictures, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")]
    zips = [_zip(pictures, kind) for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)]

    def unpack(path: Path):
        return archives.unpack(path, path.parent / "unpacked")

    def use(path: Path):
        return open_saved(path, make_model if (path / "ensemble.json").exists() else None).ensemble.predict_proba(x)

    savers = (np.savez, np.savez_compressed)
    arrays = [images, images[..., None], images.astype(np.float64), images.astype(">i4"), np.asfortranarray(images)]
    return {
        "picture": File("a.png", list(pictures.values()), lambda path: picture_sets.read_folder(path.parent, 8)),
        "folder of pictures": File("a.png", list(pictures.values()), lambda path: ge.data.read(path.parent)),
        "npy": File("a.npy", [written(np.save, array) for array in arrays], ge.data.read),
        "npz": File("a.npz", [written(save, x=images, y=np.arange(3)) for save in savers], ge.data.read),
        "idx": File("a.idx", [idx], formats.read_idx),
        "idx.gz": File("a.gz", [gzip.compress(idx)], formats.read_idx),
        "mat": File(
            "a.mat", [written(savemat, mat, do_compression=small) for small in (False, True)], formats.read_svhn
        ),
        "pickle": File("batch", [pickle.dumps(batch, protocol) for protocol in (2, 3, 4)], cifar.read_python),
        "tar": File("a.tar", tars, lambda path: picture_sets.read_folder(path, 8)),
        "zip": File("a.zip", zips, lambda path: picture_sets.read_folder(path, 8)),
        "unpacked": File("a.tgz", tars + zips, unpack),
        "table": File("a.csv", [b"a,b,c\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n"], partial(read_table, target="c")),
        "packed predictions": File("a.npz", [file.read_bytes()], unpack_predictions),
        "saved ensemble": Folder("saved", [home / "saved"], use),
        "run": Folder("run", [home / "run"], use),
        "report": Folder("run", [home / "run"], lambda path: build_page([ge.load_run(path)])),
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


def _tar(files: dict[str, bytes], mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as archive:
        for name, content in list(files.items())[:3]:
            entry = tarfile.TarInfo(f"{'long' * 40}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _zip(files: dict[str, bytes], kind: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, content in list(files.items())[:3]:
            archive.writestr(name, content)
    return buffer.getvalue()


def read_damaged(reader, folder: Path, dice: random.Random) -> str:
    """Damage a file and read it; return what is wrong with how that ended, or nothing."""
    path = reader.damaged(folder, dice)
    signal.alarm(SECONDS)
    try:
        reader.read(path)
    except ValueError as error:
        named = any(str(file) in str(error) for file in (path, folder, *path.rglob("*")))
        return "" if named else f"a message that does not name the file: {error!r}"
    except BaseException as error:
        return repr(error)[:300]
    finally:
        signal.alarm(0)
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
        signal.signal(signal.SIGALRM, _too_long)
        for name, reader in known.items():
            few = isinstance(reader, Folder) or name == "unpacked"
            for number in range(count // 4 if few else count) if only in ("", name) else ():
                place.write_text(f"{name}, seed {seed}, number {number}")
                with tempfile.TemporaryDirectory(prefix="damaged-") as folder:
                    wrong = read_damaged(reader, Path(folder), random.Random(f"{name} {seed} {number}"))
                if wrong:
                    print(f"{place.read_text()}: {wrong}", flush=True)


def _too_long(*_) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} seconds")


def find(seed: int, count: int, only: str = "") -> list[str]:
    """Return what goes wrong with so many damaged files of each kind, from a seed."""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home) / "place"
        place.write_text("the start")
        command = [sys.executable, "-W", "ignore", __file__, "--child", str(place)]
        command += ["--seed", str(seed), "--count", str(count), "--only", only]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
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
