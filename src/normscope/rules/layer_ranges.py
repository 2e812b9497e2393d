"""Rules on certified ranges: overflow, tensors without a bound, neurons that never act; and what is said of ranges."""

from collections.abc import Iterator

from normscope.results.layer_ranges import LayerRanges, TensorRange
from normscope.results.rows import path_text, several
from normscope.rules.prose import count, listed, name, number, part, verb
from normscope.rules.rule import Outcome, Skipped, found, rule, titles


@rule("NS101", "float16-overflow")
def float16_overflow(result: LayerRanges) -> Outcome:
    """A tensor of the model can hold a number that float16 can't.

    Every tensor has a bound that holds for all inputs. An overflow is an error only with a witness: a value on the text
    beyond the end of float16, or an input of a norm for which the model's own operations pass it. A bound beyond it
    without a witness is a note: the bound may be loose. A witness is an input of the norm, not of the model: whether
    some text leads to it is not known.

    What to do: run the model in bfloat16 or float32, or keep the named layers in float32. `normscope fold --rescale
    float16` writes the same function with a smaller stream, where that is possible.
    """
    rows = [*result.layers, *result.tensors, *result.others]
    limit, kind = result.limit.largest, result.limit.type
    findings = []
    seen = [row for row in rows if row.observed is not None and row.observed > limit]
    if seen:
        most = max(seen, key=lambda row: row.observed or 0.0)
        findings.append(
            found(
                "error",
                "seen on the text",
                "ranges",
                title=f"{_where(most)} holds {number(most.observed or 0.0)} on the text, more than {kind} can "
                f"({number(limit)}).",
                evidence=f"{count(len(seen), 'tensor')} of {len(rows):,} listed {verb(seen, 'passes', 'pass')} it.",
                why=f"In {kind} this value is infinite, and everything behind it is infinite or not a number.",
                do=f"Run the model in bfloat16 or float32.{_rescaled(kind)}",
                sites=_layers(seen),
                norms=_norms(seen),
                figure=(most.observed or 0.0, limit),
            )
        )
    reached = [row for row in rows if row.verdict == "reached" and row not in seen]
    if reached:
        most = max(reached, key=lambda row: abs(row.reached or 0.0))
        text = "" if most.observed is None else f" On the text it stays within {number(most.observed)}."
        findings.append(
            found(
                "error",
                "proved for an input of a norm",
                "ranges",
                title=f"{_where(most)} passes {number(limit)}, the end of {kind}, for an input of "
                f"{name(most.norm or '')}: {number(most.reached or 0.0)}.",
                evidence=f"The model's own operations gave this value in float64; no input gives more than "
                f"{number(abs(most.bound or 0.0))}. {_all_reached(reached)}{text}",
                why=f"In {kind} it is infinite. Whether a text leads to this input of the norm is not known.",
                do=f"Keep {listed(map(name, _layers(reached)), 3)} in float32 or bfloat16.{_rescaled(kind)}",
                sites=_layers(reached),
                norms=_norms(reached),
                figure=(abs(most.reached or 0.0), limit),
            )
        )
    open_rows = [row for row in rows if row.verdict in ("not excluded", "too close to call") and row not in seen]
    left, close = result.limit.open, result.limit.close
    if left or close:
        most_open = max(open_rows, key=lambda row: abs(row.bound or 0.0), default=None)
        largest = (
            "" if most_open is None else f" The largest bound is {number(most_open.bound or 0.0)}, {_where(most_open)}."
        )
        findings.append(
            found(
                "note",
                "heuristic",
                "ranges",
                title=f"An overflow of {kind} is "
                + " and ".join(
                    [f"not excluded for {left:,} more"] * bool(left)
                    + [f"too close to call for {close:,}"] * bool(close)
                )
                + f" of {count(result.limit.tensors, 'tensor')}, without an input that passes it.",
                evidence=f"Their bounds are beyond {number(limit)}, or within rounding errors of it.{largest}",
                why="The bounds may be loose: this is no proof of an overflow, and none against it.",
                do="For tighter bounds: normscope ranges MODEL --tight all",
                sites=_layers(open_rows),
                norms=_norms(open_rows),
                figure=(left + close, None),
            )
        )
    if findings:
        return findings
    bounded = result.limit.tensors - result.limit.unbounded
    if not bounded:
        return Skipped("no tensor has a bound")
    if not result.limit.unbounded:
        return f"{result.limit.sentence}."
    return f"No overflow of {result.limit.type} is possible for the {bounded:,} tensors that have a bound."


def _rescaled(kind: str) -> str:
    """Where a model can be made to fit."""
    return " Or rescale the stream: normscope fold MODEL -o FOLDER --rescale float16" if kind == "float16" else ""


def _all_reached(reached: list[TensorRange]) -> str:
    return (
        f"{len(reached)} tensors pass it in this way." if len(reached) > 1 else "No other tensor is known to pass it."
    )


@rule("NS106", "unbounded-tensor")
def unbounded_tensor(result: LayerRanges) -> Outcome:
    """The output of a linear layer has no bound that holds for all inputs.

    Bounds come from norms. A layer that reads the input of the model, or an operation that is not followed, has none.

    What to do: usually nothing; certified scales and verdicts on overflow do not cover such a layer.
    """
    if not result.layers:
        return "The model has no linear layer."
    unbounded = [row for row in result.layers if not row.bounded]
    if not unbounded:
        return f"All {len(result.layers)} linear layers are bounded, whatever the input."
    reasons: dict[str, list[str]] = {}
    for row in unbounded:
        reasons.setdefault(row.why or "", []).append(row.layer)
    because = "; ".join(f"{why}: {several(tuple(layers))}" for why, layers in list(reasons.items())[:3])
    return [
        found(
            "note",
            "proved for all inputs",
            "ranges",
            title=f"{part(unbounded, result.layers, 'linear layer')} {verb(unbounded, 'has', 'have')} no bound.",
            evidence=f"Unbounded because of {because}.",
            why="No verdict on overflow, and no certified scale, covers such a layer.",
            do="Nothing. How large it becomes on a text: normscope ranges MODEL --text FILE",
            sites=_layers(unbounded),
            figure=(len(unbounded), None),
        )
    ]


@rule("NS202", "dead-neurons")
def dead_neurons(result: LayerRanges) -> Outcome:
    """Neurons of a layer never act, whatever the input.

    The largest input of a neuron follows from the norm before it and from its weights. If that is not above 0, a ReLU
    always gives 0. For GELU and SiLU, which are never exactly 0, a neuron counts as dead if its output is never larger
    than 10⁻⁶ in size: its input is never above −5.3 (GELU) or −17 (SiLU). Of a gated layer, the gate is what counts.

    What to do: remove these neurons, with their rows and columns; behind a ReLU the function stays the same.
    """
    acting = [row for row in result.layers if row.neurons is not None]
    if not acting:
        return Skipped("no layer reads neurons with ReLU, GELU or SiLU behind a norm")
    neurons = sum(row.neurons.count for row in acting if row.neurons is not None)
    dead = {row.layer: row.neurons.dead for row in acting if row.neurons is not None and row.neurons.dead}
    if not dead:
        return f"None of {neurons:,} neurons is dead: each acts for some input of the norm before it."
    total = sum(map(len, dead.values()))
    worst = max(dead, key=lambda layer: len(dead[layer]))
    return [
        found(
            "note",
            "proved for all inputs",
            "ranges",
            title=f"{count(total, 'neuron')} never {'acts' if total == 1 else 'act'}: {len(dead[worst]):,} of those "
            f"that {name(worst)} reads ({listed(dead[worst])}).",
            evidence=f"Their inputs stay below the point where the activation begins, whatever the input; {neurons:,} "
            f"neurons were looked at, {part(list(dead), acting, 'layer')} "
            f"{verb(list(dead), 'reads', 'read')} dead ones.",
            why="They cost memory and time, and do not change an output.",
            do="Remove their rows and columns.",
            sites=tuple(dead),
            norms=_norms([row for row in acting if row.layer in dead]),
            figure=(total, None),
        )
    ]


def remarks(result: LayerRanges) -> Iterator[str]:
    """The verdict on the limit; what the rules find; what the text used."""
    yield f"{result.limit.sentence}."
    yield from titles((float16_overflow, unbounded_tensor, dead_neurons), result)
    if result.layers and isinstance(bounded := unbounded_tensor(result), str):
        yield bounded
    if result.sizes is not None:
        yield f"{result.sizes}."
    used = [row for row in (*result.layers, *result.tensors) if row.used is not None]
    if used:
        most = max(used, key=lambda row: row.used or 0.0)
        yield (
            f"On the text, {path_text(most.layer)} ({most.what}) comes nearest to its bound: {most.used:.2f} of it; "
            f"the median over {len(used)} tensors is {sorted(row.used or 0.0 for row in used)[len(used) // 2]:.2f}."
        )


def _where(row: TensorRange) -> str:
    return f"{name(row.layer)} ({row.what}, channel {row.channel})"


def _layers(rows: list[TensorRange]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.layer for row in rows))


def _norms(rows: list[TensorRange]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.norm for row in rows if row.norm is not None))
