"""Which token of a run is which: by the number of an input of a norm, its sequence, its position and its text."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from normscope.models.token_texts import token_texts
from normscope.results.inspection import TokenAt


class TokenPlaces:
    """Watches the batches of a run, then names some of their tokens.

    >>> import torch
    >>> places = TokenPlaces()
    >>> for batch in places.watch([{"input_ids": torch.tensor([[5, 6, 7], [8, 9, 9]])}]):
    ...     places.compare("norm", 6)
    >>> places.named({"norm": 4}, None)
    {'norm': TokenAt(sequence=1, position=1, text=None)}
    """

    def __init__(self) -> None:
        self._pieces: list[Tensor | None] = []  # ids of every batch; None where a batch has none
        self.others: set[str] = set()  # norms whose inputs are not tokens, one for one

    def watch(self, batches: Iterable[Mapping[str, Tensor]]) -> Iterable[Mapping[str, Tensor]]:
        """The same batches, noted as they are handed on."""
        return _Watched(batches, self._pieces)

    def compare(self, norm: str, inputs: int, batch: int = -1) -> None:
        """Note how many inputs a norm had in a batch, by its number; -1 is the last that was handed on."""
        ids = self._pieces[batch]
        if ids is None or ids.ndim != 2 or inputs != ids.numel():
            self.others.add(norm)

    def agree(self, norm: str) -> bool:
        """Whether the inputs of a norm are the tokens of the run, one for one."""
        return norm not in self.others

    def named(self, numbers: Mapping[str, int], path: Path | None) -> dict[str, TokenAt]:
        """The tokens with these numbers; without a text if the model has no tokenizer."""
        found: dict[str, tuple[int, int, int]] = {}
        for name, number in numbers.items():
            before = sequences = 0
            for ids in self._pieces:
                assert ids is not None
                if number < before + ids.numel():
                    row, position = divmod(number - before, ids.shape[1])
                    found[name] = sequences + row, position, int(ids[row, position])
                    break
                before, sequences = before + ids.numel(), sequences + ids.shape[0]
        tokens = sorted({token for _, _, token in found.values()})
        texts = {} if path is None else dict(zip(tokens, token_texts(path, tokens), strict=True))
        return {name: TokenAt(row, position, texts.get(token)) for name, (row, position, token) in found.items()}


class _Watched:
    def __init__(self, batches: Iterable[Mapping[str, Tensor]], pieces: list[Tensor | None]) -> None:
        self._batches, self._pieces = batches, pieces

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Mapping[str, Tensor]]:
        for batch in self._batches:
            ids = batch.get("input_ids")
            self._pieces.append(ids if isinstance(ids, Tensor) else None)
            yield batch
