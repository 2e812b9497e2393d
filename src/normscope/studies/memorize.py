"""The samples of a file, memorised by a network of LayerNorms."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normscope.capacity.ln_net import ENDINGS, LNNet, load_network
from normscope.capacity.memorize import memorize as memorize_samples
from normscope.capacity.samples import contradictions, refuse_contradictions
from normscope.certificates.check_networks import OPEN, float_labels
from normscope.checks import quoted
from normscope.studies.labelled_table import read_labelled_table

__all__ = ["ENDINGS", "Memorized", "memorize", "verify_memorized"]
Progress = Callable[[Iterable[None], str], Iterable[None]]


@dataclass(frozen=True)
class Memorized:
    """A network and what it has memorised."""

    file: str
    label_column: str
    labels: tuple[str, ...]  # of the samples, in the order of the file
    network: LNNet

    def to_dict(self) -> dict[str, Any]:
        found = self.network.to_dict()
        return {
            "schema_version": found.pop("schema_version"),
            "file": self.file,
            "label_column": self.label_column,
            **found,
        }


def memorize(
    file: Path,
    label: str | None = None,
    *,
    progress: Progress = lambda steps, what: steps,
    **options: Any,
) -> Memorized:
    """Read samples and labels from a file and find a network for them; options are those of `normscope.memorize`."""
    table = read_labelled_table(file, label)
    names = np.array(table.labels)
    pairs = contradictions(table.samples + 0.0, names)
    if pairs:
        refuse_contradictions(pairs, names, f"equal ones in lines of {file}", table.lines)
    network = memorize_samples(table.samples, names, progress=progress, **options)
    return Memorized(str(file), table.label, tuple(table.labels), network)


def verify_memorized(file: Path, samples: Path, label: str | None = None) -> tuple[bool, str]:
    """Whether a network kept in a file gives the samples of another their labels, in exact arithmetic; and why not.

    Where the weights have more bits than the module holds, the module must hold them rounded.
    """
    network, table = load_network(file), read_labelled_table(samples, label)
    channels = network.channels
    if table.samples.shape[1] != channels:
        return False, f"the network takes {channels} channels, and {samples} has {table.samples.shape[1]}"
    names = np.array([str(name) for name in network.classes.tolist()])
    unknown = sorted(set(table.labels) - set(names))
    if unknown:
        return False, f"the network has no class {quoted(unknown[0])}, which {samples} has in column {table.label}"
    if not network.is_rounded_right:
        return False, "the weights of the module are not the exact weights of the network, rounded"
    with np.errstate(over="ignore"):
        inputs = table.samples.astype(network.dtype).astype(np.float64)
    if not np.isfinite(inputs).all():
        return False, f"the network reads {network.dtype}, and {samples} has larger values"
    found = network.exact_labels(inputs)
    wrong = np.flatnonzero((found.winners == OPEN) | (names[found.winners] != table.labels))
    if len(wrong):
        where = f"line {table.lines[wrong[0]]} of {samples}"
        return (
            False,
            f"{len(wrong):,} of {len(table.labels):,} samples are not shown to get their labels: first {where}",
        )
    batch, single = (
        int(((places != OPEN) & (names[places] == table.labels)).sum())
        for places in float_labels(network.module, inputs)
    )
    of = "the weights that the module stores"
    rounded = ""
    if network.exact is not None:
        of, rounded = f"exact weights of {network.exact.bits} bits", f" stores them rounded to {network.dtype}, and"
    return True, (
        f"all {len(table.labels):,} samples get their labels, shown with {found.precision} bits for {of}; "
        f"the module{rounded} is right on {batch:,} in a batch, {single:,} one by one"
    )
