"""A folder of photos, from reading it to flags; these are drawn here, yours has a folder for each class as well."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import greedy_ensembles as ge

photos, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
for kind in ("circle", "square", "unknown"):
    (photos / kind).mkdir()
    for number in range(60):
        left, top = rng.integers(0, (40, 20))
        picture = Image.new("RGB", (80, 60), tuple(rng.integers(0, 100, 3).tolist()))
        draw = {"circle": "ellipse", "square": "rectangle", "unknown": "line"}[kind]
        colour = tuple(rng.integers(150, 256, 3).tolist())
        getattr(ImageDraw.Draw(picture), draw)([left, top, left + 30, top + 30], fill=colour)
        picture.save(photos / kind / f"{number}.jpg")
(photos / "unknown").rename(unknown := photos.with_name(photos.name + "-unknown"))

known = ge.data.read(photos, size=16)
print(known)
train, test = known.split(0.4)
recipe = ge.Recipe(epochs=6, batch_size=16, optimizer="adamw", lr=3e-3)
ensemble = ge.fit(lambda: ge.models.PreResNet(8, classes=2), train, size=2, recipe=recipe)
ensemble.calibrate(test, test.labels, fpr=0.1)  # on photos that had no say in training
print(f"flagged: {ensemble.flag(ge.data.read(unknown, size=16)).float().mean():.0%} of the unknown photos")
