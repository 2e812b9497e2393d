"""Many short texts with labels: read from a file, and run one by one so that none is padded."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor, nn

from normscope.checks import quoted
from normscope.errors import InputError
from normscope.models.corpus import read_text
from normscope.models.load import TextBatches, load_tokenizer, text_batches


def read_labelled(path: Path) -> tuple[list[str], list[str]]:
    """Texts and labels of a UTF-8 file: in each line a text, a tab, a label; empty lines are skipped."""
    texts, labels = [], []
    first_line: dict[str, int] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        text, _, label = (part.strip() for part in line.rpartition("\t"))
        if not text or not label:
            raise InputError(f"{path}: line {number} must be a text, a tab and a label, got {line[:60]!r}")
        texts.append(text)
        labels.append(label)
        first_line.setdefault(label, number)
    for label, count in Counter(labels).items():
        if count == 1:
            raise InputError(
                f"{path}: each label must occur twice or more, got {quoted(label)} only in line {first_line[label]}: "
                "remove that line if it is a header row"
            )
    if len(first_line) < 2:
        raise InputError(f"{path}: expected two or more different labels, got {len(first_line)}")
    return texts, labels


def batches_of_texts(path: Path, model: nn.Module, texts: Sequence[str]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """The number of a text and a batch of one row, for each text or, where it is too long for the model, its pieces."""
    text_batches(path, texts)  # refuses texts that this model can't read, before the first run
    tokenizer = load_tokenizer(path)
    for number, text in enumerate(texts):
        try:
            batches = TextBatches([text], tokenizer, model)
        except ValueError as error:
            raise InputError(f"text {number + 1}: {error}") from None
        for batch in batches:
            yield number, batch
