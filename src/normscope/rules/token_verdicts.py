"""A rule on tokens that never win; and which matrix and norm verdicts are about, and what was assumed."""

from collections.abc import Iterator

from normscope.results.token_verdicts import TokenVerdict, TokenVerdicts
from normscope.rules.prose import count, listed, name, quoted_token
from normscope.rules.rule import Outcome, found, rule


@rule("NS203", "unreachable-token")
def unreachable_token(result: TokenVerdicts) -> Outcome:
    """A token of the vocabulary can never be the model's first choice.

    Its row of the output layer never gives the largest score: for no hidden vector at all, or for no output of the last
    norm. Greedy decoding never emits it; sampling still may. A token that is tied equals another one, or is decided by
    rounding. Every verdict has a certificate.

    What to do: if the token must be emitted (an end or tool token), raise its bias or train it; unused ones do no harm.
    """
    lost = [token for token in result.listed if "never" in (token.any_vector, token.reachable)]
    tied = [token for token in result.listed if token not in lost and "tied" in (token.any_vector, token.reachable)]
    undecided = max(row.open for row in result.counts)
    left = f" {undecided:,} tokens are open: no verdict in the time given." if undecided else ""
    if not lost and not tied:
        decided = result.tokens - undecided
        return f"Each of {decided:,} tokens can be the first choice.{left}"
    findings = []
    if lost:
        anywhere = sum(token.any_vector == "never" for token in lost)
        by = "hidden vector" if anywhere == len(lost) else f"output of {name(result.norm or '')}"
        findings.append(
            found(
                "note",
                "proved for all inputs" if not result.assumed else "heuristic",
                "vocabulary",
                title=f"{count(len(lost), 'token')} of {result.tokens:,} can never be the first choice: "
                f"{_named(lost)}.",
                evidence=f"No {by} scores one of them above all others; for {anywhere:,} no vector at all does.{left}",
                why="Greedy decoding never emits such a token.",
                do="If it must be emitted, raise its bias or train it. Certificates: normscope vocab MODEL -o FILE",
                sites=(result.unembedding,),
                norms=() if result.norm is None else (result.norm,),
                figure=(len(lost), None),
            )
        )
    if tied:
        findings.append(
            found(
                "note",
                "proved for all inputs" if not result.assumed else "heuristic",
                "vocabulary",
                title=f"{count(len(tied), 'token')} of {result.tokens:,} {'is' if len(tied) == 1 else 'are'} tied with "
                f"another: {_named(tied)}.",
                evidence=f"Their rows of {name(result.unembedding)} equal another row, or differ by rounding alone."
                f"{left}",
                why="Such a token never wins alone; which of two equal ones is emitted is up to the implementation.",
                do="Nothing, if they are unused; otherwise train one of them.",
                sites=(result.unembedding,),
                norms=() if result.norm is None else (result.norm,),
                figure=(len(tied), None),
            )
        )
    return findings


def _named(tokens: list[TokenVerdict]) -> str:
    return listed([f"token {each.token}" if each.text is None else quoted_token(each.text) for each in tokens])


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
