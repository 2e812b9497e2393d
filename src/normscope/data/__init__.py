"""Data included in the package: a small GPT trained on public-domain text, and a text that it was not trained on.

`tools/train_bundled.py` trained it; the command, seed and losses are in model/training.json.
"""

from pathlib import Path

HERE = Path(__file__).parent


def demo_model() -> Path:
    """The folder of a small trained GPT that ships with the package, in Hugging Face format.

    Returns
    -------
    Path
        A path that every function of normscope takes as a model.

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
    """The text of `--text sample`."""
    return (HERE / "sample.txt").read_text(encoding="utf-8")
