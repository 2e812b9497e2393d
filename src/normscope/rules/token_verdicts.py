"""What to know about verdicts on tokens: which matrix and norm they are about, and what was assumed."""

from collections.abc import Iterator

from normscope.results.token_verdicts import TokenVerdicts


def remarks(result: TokenVerdicts) -> Iterator[str]:
    """Sentences on what verdicts are about."""
    through = f" through {', '.join(result.through)}" if result.through else ""
    reads = f"reads the output of {result.norm}{through}" if result.norm else "reads no norm"
    tied = ", which is the embedding as well," if result.tied_embeddings else ""
    bias = ", with a bias," if result.output_bias else ""
    yield (
        f"The output layer {result.unembedding}{tied} has {result.tokens:,} rows of {result.channels} channels{bias} "
        f"and {reads}."
    )
    if result.reachable_set is not None:
        yield f"Hidden vectors that {result.norm} can produce: {result.reachable_set}."
    if result.not_asked is not None:
        yield f"No verdicts for the outputs of a norm: {result.not_asked}."
    if result.assumed:
        yield f"Assumed, because it could not be observed: {'; '.join(result.assumed)}."
    undecided = max(count.open for count in result.counts)
    if undecided:
        yield (
            f"{undecided:,} tokens are open: no verdict in the time given. Run it again with more --seconds, "
            "or resume with -o."
        )
    if any(count.tied for count in result.counts):
        yield "A tied token equals another one, or is decided by rounding: it never wins alone."
    if result.seconds:
        yield f"CPU time: {', '.join(f'{name} {time:.3g} s' for name, time in result.seconds.items())}."
