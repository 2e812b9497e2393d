"""Modules as a reader of the page calls them, and the map of a model: which norm stands in which block and row."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.results.inspection import Inspection, NormGeometry
from normscope.results.rows import path_text

NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$|:)")
LONGEST = 40  # characters in a drawing
ATTENTION, MLP = re.compile(r"att", re.IGNORECASE), re.compile(r"mlp|ffn|feed|dense|fc|expert|moe", re.IGNORECASE)
QUERY = re.compile(r"(^|[._])q(uery)?_?(layer)?_?norm|norm_q", re.IGNORECASE)
KEY = re.compile(r"(^|[._])k(ey)?_?(layer)?_?norm|norm_k", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column of the map: the norms of a block by row; or one norm outside blocks, with row None."""

    label: str
    cells: tuple[tuple[int | None, int], ...]  # row, number of the norm


@dataclass(frozen=True)
class Stack:
    """Blocks of one kind, such as an encoder, with the norms before and after them."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]


def split(path: str) -> tuple[str, int, str] | None:
    """What stands before the first number in a path, the number, and the rest; None without a number.

    >>> split("model.layers.12.mlp.down_proj"), split("model.norm")
    (('model.layers', 12, 'mlp.down_proj'), None)
    """
    found = NUMBER.search(path)
    return None if found is None else (path[: found.start()], int(found[1]), path[found.end() :].lstrip(".:"))


def short_place(path: str) -> str:
    """A module in few words.

    >>> short_place("model.layers.12.mlp.down_proj"), short_place("model.layers.3"), short_place("lm_head")
    ('block 12 · mlp.down_proj', 'block 3', 'lm_head')
    """
    parts = split(path)
    if parts is None:
        return cut(path_text(path))
    last = parts[2] if len(parts[2]) <= 28 else ".".join(parts[2].split(".")[-2:])
    return cut(f"block {parts[1]}" + (f" · {last}" if last else ""))


def cut(text: str) -> str:
    """At most 40 characters."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def block_labels(paths: Sequence[str]) -> list[str]:
    """The numbers of blocks where each path has one of its own, otherwise short places.

    >>> block_labels(["h.0.attn", "h.1.attn"]), block_labels(["enc.0.attn", "dec.0.attn"])
    (['0', '1'], ['block 0 · attn', 'block 0 · attn'])
    """
    parts = [split(path) for path in paths]
    numbers = [str(each[1]) for each in parts if each is not None]
    return numbers if len(set(numbers)) == len(paths) else [short_place(path) for path in paths]


def stacks_of(result: Inspection) -> list[Stack]:
    """The map of a model: one stack for each list of blocks that holds norms."""
    norms = result.norms
    parts = [split(norm.name) for norm in norms]
    prefixes = list(dict.fromkeys(each[0] for each in parts if each is not None))
    if not prefixes:
        columns = tuple(Column(cut(norm.name), ((None, at),)) for at, norm in enumerate(norms))
        return [Stack("", (), columns)] if columns else []
    made = [
        _stack(prefix, norms, parts, named=len(prefixes) > 1, after=result.placement == "post-norm")
        for prefix in prefixes
    ]
    for at, each in enumerate(parts):
        if each is not None:
            continue
        later = [place for place, prefix in enumerate(prefixes) if any(p and p[0] == prefix for p in parts[at + 1 :])]
        single = Column(cut(norms[at].name.rpartition(".")[2] or path_text(norms[at].name)), ((None, at),))
        nearest = _nearest(norms[at].name, prefixes)
        stack = made[nearest]
        before = nearest in later
        columns = (single, *stack.columns) if before else (*stack.columns, single)
        made[nearest] = Stack(stack.title, stack.rows, columns)
    return made


def _nearest(name: str, prefixes: Sequence[str]) -> int:
    """The stack whose name has most in common with that of a norm; the last of several."""

    def common(prefix: str) -> int:
        return sum(1 for _ in _same_start(name.split("."), prefix.split(".")))

    return max(range(len(prefixes)), key=lambda at: (common(prefixes[at]), at))


def _same_start(one: Sequence[str], other: Sequence[str]) -> list[str]:
    same = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same.append(a)
    return same


def _stack(
    prefix: str,
    norms: Sequence[NormGeometry],
    parts: Sequence[tuple[str, int, str] | None],
    *,
    named: bool,
    after: bool,
) -> Stack:
    members = [(at, each) for at, each in enumerate(parts) if each is not None and each[0] == prefix]
    suffixes = list(dict.fromkeys(each[2] for _, each in members))
    blocks = sorted({each[1] for _, each in members})
    columns = tuple(
        Column(str(block), tuple((suffixes.index(each[2]), at) for at, each in members if each[1] == block))
        for block in blocks
    )
    labels = tuple(_row_label(suffix, [norms[at] for at, each in members if each[2] == suffix]) for suffix in suffixes)
    if after:
        labels = tuple("after attention" if ATTENTION.search(suffix) else "after the MLP" for suffix in suffixes)
    if len(set(labels)) < len(labels):
        labels = tuple(cut(suffix) for suffix in suffixes)
    return Stack(cut(prefix) if named else "", labels, columns)


def _row_label(suffix: str, norms: Sequence[NormGeometry]) -> str:
    """What a row of norms is for, from the modules that read it; its own name where that does not tell."""
    for pattern, word in ((QUERY, "queries"), (KEY, "keys")):
        if pattern.search(suffix):
            return word
    readers = [[split(path) for path in norm.read_by or ()] for norm in norms]
    own = [split(norm.name) for norm in norms]
    words = set()
    for mine, each in zip(own, readers, strict=True):
        inside = [part[2] for part in each if part and mine and part[1] == mine[1] and part[0] == mine[0]]
        attention, mlp = (any(pattern.search(path.split(".")[0]) for path in inside) for pattern in (ATTENTION, MLP))
        words.add("attention" if attention and not mlp else "MLP" if mlp and not attention else "")
    return (
        f"before {'the MLP' if words == {'MLP'} else 'attention'}" if len(words) == 1 and words != {""} else cut(suffix)
    )
