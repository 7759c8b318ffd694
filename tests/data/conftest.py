import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def random_bytes():
    """Random uint8 arrays of a shape."""
    generator = np.random.default_rng(3)
    return lambda *shape: generator.integers(0, 256, shape, np.uint8)


@pytest.fixture
def encoded():
    """An array (height, width) or (height, width, 3) as the bytes of a picture file; PNG keeps every pixel."""

    def encode(pixels, kind="PNG"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        return buffer.getvalue()

    return encode


@pytest.fixture
def write_idx():
    """Write an array as an idx file."""

    def write(path, array, kind=8):
        path.parent.mkdir(parents=True, exist_ok=True)
        header = bytes([0, 0, kind, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        path.write_bytes(header + array.tobytes())
        return path

    return write


def make_zip(path, files, compression=zipfile.ZIP_STORED):
    """Write files, by their names, as a zip."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_tar(path, files, mode="w"):
    """Write files, by their names, as a tar; (type, target) stands for a link or a device."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                archive.addfile(member)
    return path


def store(kind, path, files):
    """Write files as a folder, a zip, or a tar, plain or compressed; return where."""
    if kind == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return path
    path = path.with_suffix(f".{kind}")
    if kind == "zip":
        return make_zip(path, files)
    return make_tar(path, {f"./{name}": content for name, content in files.items()}, "w:gz" if kind == "tgz" else "w")
