"""Byte-pair encoding learned from the training text itself, for models whose vocabulary must be small."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from normscope.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def learned_pairs(texts: Iterable[str], vocabulary: int, special: Iterable[str] = ()) -> "Tokenizer":
    """A tokenizer with at most `vocabulary` tokens, the special ones first.

    >>> tokenizer = learned_pairs(["to be or not to be"] * 9, 270, special=["<pad>"])
    >>> tokenizer.encode("to be").tokens, tokenizer.decode(tokenizer.encode("to be").ids)
    (['to', 'Ġbe'], 'to be')
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet, first = pre_tokenizers.ByteLevel.alphabet(), list(special)
    least = len(alphabet) + len(first)
    if vocabulary < least:
        raise InputError(f"vocabulary must be {least} or more, to hold all bytes, got {vocabulary}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=first,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
