"""Tokens that can and cannot be the first choice of a model, and what finding them out costs."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normscope.report.norm_columns import Value, _table
from normscope.report.tables.shared import duration, escape, new_table, readable, tables
from normscope.studies.vocab_results import Answer, Token, Vocab

SHOWN = 40  # tokens of a kind
CAPTION = (
    "can win: some hidden vector prefers the token to all others; never: none does; "
    "tied: none does, but only just, as of twins; open: not settled"
)
HEADINGS = ("can win", "never", "tied", "open")


@tables.register
def _(result: Vocab) -> list[RenderableType]:
    table = new_table(f"Tokens of {result.model} that can be the argmax", CAPTION, "hidden vectors")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, answer in _answers(result):
        table.add_row(escape(name), *(f"{count:,}" for count in _counts(answer)))
    lists = [
        _listed(f"{heading}, {name}", tokens)
        for name, answer in _answers(result)
        for heading, tokens in (
            ("Never", answer.never_tokens),
            ("Tied", answer.tied_tokens),
            ("Open", answer.open_tokens),
        )
        if tokens
    ]
    return [table, *lists, *(Text(f"• {sentence}") for sentence in _sentences(result))]


def vocab_html(result: Vocab) -> str:
    """A table of the counts, every string from the model escaped."""
    headings = [
        ("hidden vectors", "which may be put to the unembedding"),
        ("can win", "some of them prefers the token to all others"),
        ("never", "none does"),
        ("tied", "none does, but only just, as of twins"),
        ("open", "not settled"),
    ]
    rows: list[list[Value]] = [[name, *_counts(answer)] for name, answer in _answers(result)]
    return _table(f"Tokens of {result.model} that can be the argmax", headings, rows)


def _answers(result: Vocab) -> list[tuple[str, Answer]]:
    reachable = [(f"those that {result.norm} writes", result.reachable)] if result.reachable else []
    return [("any", result.plain), *reachable]


def _counts(answer: Answer) -> tuple[int, int, int, int]:
    return answer.wins, answer.never, answer.tied, answer.open


def _listed(title: str, tokens: tuple[Token, ...]) -> Table:
    more = len(tokens) - SHOWN
    table = new_table(title, f"and {more:,} more: --json lists all" if more > 0 else "", "token", "text")
    for token in tokens[:SHOWN]:
        table.add_row(str(token.id), "–" if token.text is None else escape(readable(token.text)))
    return table


def _sentences(result: Vocab) -> list[str]:
    through = f" through {', '.join(result.through)}" if result.through else ""
    reads = f"reads {result.norm}{through}" if result.norm else "reads no norm"
    tied = {True: ", the embedding as well,", False: "", None: ""}[result.tied_embeddings]
    bias = ", with a bias" if result.output_bias else ""
    sentences = [
        f"{result.unembedding}{tied} has {result.tokens:,} rows of {result.channels} channels{bias} and {reads}."
    ]
    if result.reachable_set is not None:
        sentences.append(f"Reachable is {result.reachable_set}.")
    if result.not_asked is not None:
        sentences.append(f"Reachable vectors are not asked for: {result.not_asked}.")
    if result.assumed:
        sentences.append(f"Assumed, because it could not be observed: {'; '.join(result.assumed)}.")
    sentences.append(f"CPU time: {', '.join(f'{name} {duration(time)}' for name, time in result.seconds.items())}.")
    return [_printable(sentence) for sentence in sentences]


def _printable(sentence: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in sentence)
