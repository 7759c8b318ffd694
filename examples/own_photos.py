"""A folder of photos (drawn here), from reading it to flags: noise gets them, and few photos of another kind do."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import greedy_ensembles as ge

photos, rng = Path(tempfile.mkdtemp(), "photos"), np.random.default_rng(0)
for kind in ("circle", "square", "unknown"):
    (photos / kind).mkdir(parents=True)  # yours has a folder for each class as well
    for number in range(60):
        left, top = rng.integers(0, (40, 20))
        picture = Image.new("RGB", (80, 60), tuple(rng.integers(0, 100, 3).tolist()))
        draw = {"circle": "ellipse", "square": "rectangle", "unknown": "line"}[kind]
        colour = tuple(rng.integers(150, 256, 3).tolist())
        getattr(ImageDraw.Draw(picture), draw)([left, top, left + 30, top + 30], fill=colour)
        picture.save(photos / kind / f"{number}.jpg")
(photos / "unknown").rename(unknown := photos.with_name("unknown"))

known = ge.data.read(photos, size=16)
print(known)
train, test = known.split(0.4)
recipe = ge.Recipe(epochs=15, batch_size=16, optimizer="adamw", lr=3e-3, weight_decay=1e-2, augment="flip_crop")
ensemble = ge.fit(lambda: ge.models.PreResNet(8, classes=2), train, size=3, recipe=recipe)
ensemble.calibrate(test, test.labels, fpr=0.1)  # on photos that had no say in training
strange = {"noise": ge.data.make_noise("uniform", 60, size=16, channels=3), "lines": ge.data.read(unknown, size=16)}
print("flagged:", {name: f"{ensemble.flag(images).float().mean():.0%}" for name, images in strange.items()})
