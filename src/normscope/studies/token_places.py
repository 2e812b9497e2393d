"""Which token of a run has the largest input of a norm: its sequence, its position and its text."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from normscope.models.token_texts import token_texts
from normscope.results.inspection import TokenAt


class TokenPlaces:
    """Notes tokens batch by batch, then names them; nothing else of the text is kept.

    >>> import torch
    >>> places, batch = TokenPlaces(), {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 9]])}
    >>> places.note("norm", batch, inputs=6, largest=4)
    >>> places.end(batch)
    >>> places.named(None)
    {'norm': TokenAt(sequence=1, position=1, text=None)}
    """

    def __init__(self) -> None:
        self._others: set[str] = set()  # norms whose inputs are not tokens, one for one
        self._places: dict[str, tuple[int, int, int]] = {}  # sequence, position, token
        self._sequences = 0  # in batches that have ended

    def note(self, norm: str, batch: Mapping[str, Tensor], inputs: int, largest: int) -> None:
        """How many inputs a norm had in a batch, and which of them is the largest so far; below 0: an earlier one."""
        ids = _ids(batch)
        if ids is None or inputs != ids.numel():
            self._others.add(norm)
        elif largest >= 0:
            row, position = divmod(largest, ids.shape[1])
            self._places[norm] = self._sequences + row, position, int(ids[row, position])

    def end(self, batch: Mapping[str, Tensor]) -> None:
        """Go on to the next batch."""
        ids = _ids(batch)
        self._sequences += 0 if ids is None else len(ids)

    def named(self, path: Path | None) -> dict[str, TokenAt]:
        """The token of each norm whose inputs are tokens; without a text if the model has no tokenizer."""
        found = {norm: place for norm, place in self._places.items() if norm not in self._others}
        tokens = sorted({token for _, _, token in found.values()})
        texts = {} if path is None else dict(zip(tokens, token_texts(path, tokens), strict=True))
        return {norm: TokenAt(row, position, texts.get(token)) for norm, (row, position, token) in found.items()}


def _ids(batch: Mapping[str, Tensor]) -> Tensor | None:
    """The tokens of a batch, (sequences, positions), if it has them."""
    ids = batch.get("input_ids")
    return ids if isinstance(ids, Tensor) and ids.ndim == 2 else None
