"""What ships with the package: a small GPT trained on public-domain text, and a piece of text that it has not seen.

`tools/train_bundled.py` trained it; the command, seed and losses are in model/training.json.
"""

from pathlib import Path

HERE = Path(__file__).parent


def demo_model() -> Path:
    """The folder of a small trained GPT that ships with the package, in Hugging Face format.

    >>> sorted(path.name for path in demo_model().iterdir())[:2]
    ['config.json', 'model.safetensors']
    """
    return HERE / "model"


def name_of(path: Path) -> str:
    """A model as results name it: by its path, or as the demo model.

    >>> name_of(demo_model())
    'the demo model'
    """
    return "the demo model" if path == demo_model() else str(path)


def sample_text() -> str:
    """The text that `--text sample` runs."""
    return (HERE / "sample.txt").read_text(encoding="utf-8")
