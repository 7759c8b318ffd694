"""Damage of files, at random but from a seed: of bytes, of values in JSON, of tensors, of folders by a forger."""

import hashlib
import json
import random
import shutil
from pathlib import Path

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
    """A folder, one of whose files is damaged: what is ours keeps right checksums, as that of a forger would."""

    def damaged(self, folder: Path, dice: random.Random) -> Path:
        path = folder / self.name
        shutil.copytree(dice.choice(self.variants), path)
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".md")
        file = dice.choice([*files, *(3 * [file for file in files if file.parent == path])])  # what says the most
        if dice.random() < 0.1 or file.suffix not in (".json", ".jsonl", ".safetensors"):
            file.write_bytes(damage_bytes(file.read_bytes(), dice))
        elif file.suffix == ".json":
            _forge_json(file, dice)
        elif file.suffix == ".safetensors":
            replace_checksum(path, *_forge_tensors(file, dice))
        else:
            before = file.read_bytes()
            lines = [damage_value(json.loads(line), dice) for line in before.splitlines()]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            replace_checksum(path, *(hashlib.sha256(text).hexdigest() for text in (before, file.read_bytes())))
        return path


def _forge_json(file: Path, dice: random.Random) -> None:
    from greedy_ensembles import storage

    value = storage.read_json(file)
    for _ in range(dice.randint(1, 3)):
        value = damage_value(value, dice)
    storage.write_json(file, value if isinstance(value, dict) else {"odd": value})


def _forge_tensors(file: Path, dice: random.Random) -> tuple[str, str]:
    """Change what a file says of its tensors, or one of these; return its checksums before and after."""
    from safetensors import safe_open

    from greedy_ensembles import storage

    with safe_open(file, framework="pt") as opened:
        before = opened.metadata()["sha256"]
    found, metadata = storage.read_tensors(file)
    tensors = {name: value.clone() for name, value in found.items()}  # out of the file, which is to change
    if metadata and dice.random() < 0.5:
        name = dice.choice(sorted(metadata))
        try:
            metadata[name] = json.dumps(damage_value(json.loads(metadata[name]), dice))
        except ValueError:  # of some things plain text is said
            metadata[name] = str(dice.choice(ODD_VALUES))
    else:
        name = dice.choice(sorted(tensors))
        tensors[dice.choice([name, name, name, "x", "../x"])] = damage_tensor(tensors.pop(name), dice)
    return before, storage.write_tensors(file, tensors, metadata)


def damage_tensor(tensor, dice: random.Random):
    """Return a tensor of another type, shape or content."""
    import torch

    changes = [
        lambda: tensor.to(dice.choice([torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])),
        lambda: tensor.flatten()[: dice.choice([0, 1, 3])],
        lambda: tensor[None],
        lambda: torch.cat([tensor.flatten()] * 3),
        lambda: torch.full_like(tensor, float("nan") if tensor.is_floating_point() else -1),
        lambda: tensor.flip(0) if tensor.ndim else tensor + 1,
    ]
    return dice.choice(changes)()


def replace_checksum(folder: Path, before: str, after: str) -> None:
    """Replace a checksum wherever the JSON of a folder has it."""
    from greedy_ensembles import storage

    for file in folder.rglob("*.json"):
        text = json.dumps(storage.read_json(file))
        if before in text:
            storage.write_json(file, json.loads(text.replace(before, after)))
