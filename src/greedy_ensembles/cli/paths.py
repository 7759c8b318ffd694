"""What is checked of paths before anything is computed."""

from collections.abc import Iterable
from pathlib import Path


def check_there(paths: Iterable[Path]) -> None:
    """Refuse paths that lead nowhere: "it holds no run" would be true of them, and no help."""
    for path in paths:
        if not path.expanduser().exists():
            raise FileNotFoundError(f"{path} does not exist")


def check_folder(out: Path | None, option: str = "--out") -> None:
    """Refuse a file where a folder is to be made."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{option} must be a folder, but {out} is a file")


def check_file(out: Path | None) -> None:
    """Refuse a folder where a file is to be written."""
    if out is not None and out.is_dir():
        raise ValueError(f"--out must be a file, but {out} is a folder")
