"""A network that has memorised samples: its size, its certificate, and the way of the samples through it."""

from rich.console import RenderableType
from rich.text import Text

from normscope.report.journey import SYMBOLS, journey_lines
from normscope.report.tables.shared import counted, duration, escape, new_table, tables
from normscope.studies.memorize import Memorized

COLUMNS, LAYERS = 84, 12  # of the journey
NAMED = 10  # classes


@tables.register
def _(result: Memorized) -> list[RenderableType]:
    network, origin, proof = result.network, result.network.origin, result.network.certificate
    classes = ", ".join(escape(str(name)) for name in network.classes[:NAMED])
    title = f"{origin.samples} samples of {result.file}, {len(network.classes)} classes of {result.label_column}"
    table = new_table(title, f"{duration(origin.seconds)} of CPU time, searches {max(1, origin.attempts)}", "", "")
    bound = f"projection merge needs up to {network.bound}"
    least = "" if network.least is None else f", no fewer than {network.least} can do for this line"
    table.add_row("classes ", classes + (" …" if len(network.classes) > NAMED else ""))
    table.add_row("depth ", f"{counted(network.depth)} of width {network.width} ({bound}{least})")
    table.add_row("found by ", f"{origin.method}, from {origin.runs} runs of equal labels along the line")
    weights = "the weights of the module" if proof.of_module else f"weights of {proof.weight_bits} bits"
    table.add_row(
        "certified ",
        f"{proof.exact} of {proof.samples} samples in exact arithmetic ({proof.precision} bits), for {weights}; "
        f"the right score leads by {proof.margin:.2g} or more",
    )
    kind = str(next(network.module.parameters()).dtype).removeprefix("torch.")
    table.add_row(
        f"{kind} module ", f"right on {proof.batch} of {proof.samples} samples in a batch, {proof.single} one by one"
    )
    symbols = ", ".join(
        f"{symbol} = {escape(str(name))}" for symbol, name in zip(SYMBOLS, network.classes[:NAMED], strict=False)
    )
    lines = "\n".join(f"{layer:5}  {line}" for layer, line in journey_lines(result, COLUMNS, LAYERS))
    return [table, Text(f"labels in the order of the line, after so many LayerNorms ({symbols}):\n{lines}")]
