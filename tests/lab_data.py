"""Data of the experiments in miniature, in the formats it comes in."""

import gzip

import numpy as np

WORDS = ("ein", "mann", "hund", "läuft", "rot", "haus", "kind", "sieht", "und", "das", "ball", "wasser")


def write_all(folder):
    """A folder with all data sets, as --data takes it."""
    draw = np.random.default_rng(0)
    for name, shape in (("cifar10", (32, 32, 3)), ("mnist", (28, 28))):
        (folder / name).mkdir(parents=True)
        np.savez(
            folder / name / "small.npz",
            x_train=draw.integers(0, 256, (24, *shape), dtype=np.uint8),
            y_train=np.arange(24, dtype=np.uint8) % 10,
            x_test=draw.integers(0, 256, (12, *shape), dtype=np.uint8),
            y_test=np.arange(12, dtype=np.uint8) % 10,
        )
    (folder / "wikitext2").mkdir()
    letters = draw.choice(list("abcdefghijklmnop "), 24_000)
    (folder / "wikitext2" / "text.txt").write_text("".join(letters), encoding="utf-8")
    (folder / "sst2").mkdir()
    for name, count in (("train", 40), ("dev", 12)):
        lines = [f"{sentence(draw, 6, 20)}\t{number % 2}" for number in range(count)]
        (folder / "sst2" / f"sentence_{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "multi30k_de_en").mkdir()
    for name, count in (("train", 20), ("val", 4), ("test_2016_flickr", 3)):
        for language in ("de", "en"):
            lines = "\n".join(sentence(draw, 3, 8) for _ in range(count))
            (folder / "multi30k_de_en" / f"{name}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def sentence(draw, least, most):
    return " ".join(draw.choice(WORDS, draw.integers(least, most)))
