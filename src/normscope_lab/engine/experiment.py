"""What an experiment is: cells that do not depend on each other, and findings about all their rows.

A cell is one choice of settings with one seed. Its rows are tidy: one observation each, with all that it depends on.
Each file of `normscope_lab.experiments` has one experiment, named as the file is.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

from normscope.checks import quoted
from normscope.errors import InputError
from normscope_lab import experiments
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.loaders.data_files import fingerprints
from normscope_lab.results.experiments_list import ExperimentsList, ListedExperiment, Preset
from normscope_lab.results.reproduction import Finding, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]  # as JSON holds them
PAPER, QUICK = PRESETS = ("paper", "quick")
CHOOSING, JUDGING = "choosing", "judging"  # stages: rows that settings are chosen by, and rows that decide


@dataclass(frozen=True)
class Cell:
    """One independent part of a run."""

    key: str  # names its files
    seed: int
    settings: Settings
    data: Path | None = None  # where --data is in this run; results depend on its content, not on its place


class Experiment(ABC):
    """One experiment of a paper: how it is set up, run, judged and drawn."""

    what: ClassVar[str]
    source: ClassVar[str]
    seeds: ClassVar[Mapping[str, int]]  # how many, by preset
    first_seed: ClassVar[int] = 0  # above those with which settings were found
    paper: ClassVar[Settings]  # everything that the results depend on, apart from seeds and data
    quick: ClassVar[Settings] = {}  # what the preset quick changes of it
    unpublished: ClassVar[tuple[str, ...]] = ()  # settings of `paper` that the paper does not state
    variants: ClassVar[tuple[str, ...]] = ()
    data: ClassVar[str] = ""  # what --data must hold; empty if none is needed

    @property
    def name(self) -> str:
        """As on the command line."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    def files(self, data: Path) -> list[Path]:
        """The files of the data that are read."""
        return []

    def settings(self, preset: str, data: Path | None) -> Settings:
        """The settings of a preset, with the fingerprints of the data."""
        chosen = {**self.paper, **(self.quick if preset == QUICK else {})}
        return {**chosen, "data": fingerprints(self.files(data))} if self.data and data else chosen

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        """The parts, in the order in which they are run; settings that do not fit are refused."""
        require_fitting(settings)
        return cells_of(settings, seeds, variant=self.variants)

    def later(self, settings: Settings, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
        """Cells that depend on the rows of `cells`, such as those that judge what was chosen; without rows, as many."""
        return []

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        """What is fixed before a run: how it will be decided, and what it can see."""
        return []

    @abstractmethod
    def run(self, cell: Cell, state: CellState) -> list[Row]:
        """The rows of one cell. Long cells save their state, and resume from it."""

    @abstractmethod
    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        """What the rows say about the paper's claims."""

    @abstractmethod
    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        """Figures by name, like those of the paper."""

    def pages(self, settings: Settings, rows: Sequence[Row]) -> dict[str, str]:
        """HTML by name, for what must be turned to be seen."""
        return {}

    def differences(self, settings: Settings, rows: Sequence[Row], *others: str) -> str:
        """All that is not as in the paper: settings, the number of seeds, and other differences in words."""
        judging = [row for row in rows if row.get("stage") != CHOOSING]
        count, published = len({row["seed"] for row in judging}), self.seeds[PAPER]
        where = "preset paper" if "seeds" in self.unpublished else "the paper"
        seeds = [] if count == published else [f"{count} seeds ({where}: {published})"]
        lost = sorted({f"{row['variant']}, seed {row['seed']}" for row in rows if row.get("loss", 0) is None})
        diverged = [f"diverged: {' and '.join(lost)}"] if lost else []
        return "; ".join([*diverged, *others, *seeds, *changes(settings, self.paper, self.unpublished)])


def names() -> tuple[str, ...]:
    """All experiments, as on the command line."""
    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(experiments.__path__)))


def experiment_named(name: str) -> Experiment:
    """The experiment of that name.

    >>> experiment_named("random-keys").source
    'Brody et al. 2023, fig. 1c, 1d'
    """
    if name not in names():
        raise InputError(f"experiment must be one of {', '.join(names())}, got {quoted(name)}")
    home = import_module(f"{experiments.__name__}.{name.replace('-', '_')}")
    kinds = [each for each in vars(home).values() if isinstance(each, type) and each.__module__ == home.__name__]
    experiment: Experiment = next(each for each in kinds if issubclass(each, Experiment))()
    return experiment


def experiments_list() -> ExperimentsList:
    """All experiments, with what they need and the settings of their presets."""
    return ExperimentsList(
        tuple(
            ListedExperiment(
                each.name,
                each.what,
                each.source,
                each.data,
                {
                    preset: Preset(each.seeds[preset], as_result(each.settings(preset, None)))
                    for preset in sorted(PRESETS, reverse=True)
                },
            )
            for each in map(experiment_named, names())
        )
    )


def as_result(settings: Settings) -> dict[str, Setting]:
    """Settings as a result holds them: lists are tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def cells_of(settings: Settings, seeds: Sequence[int], **choices: Sequence[Any]) -> list[Cell]:
    """One cell for each seed and each combination of choices, which take the place of settings.

    >>> [(cell.key, cell.settings) for cell in cells_of({"channels": [3, 4], "runs": 9}, [0], channels=[3, 4])]
    [('channels-3-seed-0', {'channels': 3, 'runs': 9}), ('channels-4-seed-0', {'channels': 4, 'runs': 9})]
    """
    chosen = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return [
        Cell(
            file_name(*(f"{name} {value}" for name, value in each.items()), f"seed {seed}"), seed, {**settings, **each}
        )
        for seed in seeds
        for each in chosen
    ]


def file_name(*parts: str) -> str:
    """Words as the name of a file.

    >>> file_name("LN-Net, g = 4", "seed 0")
    'LN-Net-g-4-seed-0'
    """
    return "-".join(re.findall(r"[\w-]+", " ".join(parts)))


def require_fitting(settings: Settings) -> None:
    """Refuse steps that do not make whole epochs, heads or groups that do not share the channels equally."""
    for whole, part in (
        ("steps", "epoch"),
        ("epoch", "every"),
        ("width", "heads"),
        ("width", "groups"),
        ("width", "group_channels"),
    ):
        parts = settings.get(part, [])
        for size in parts if isinstance(parts, list) else [parts]:
            if whole in settings and settings[whole] % size:
                raise InputError(f"{whole} must be a multiple of {part}, got {settings[whole]} and {size}")


def changes(settings: Settings, published: Settings, unpublished: Sequence[str] = ()) -> list[str]:
    """What differs from published settings, in words, and from those that stand in for what was not published.

    Settings that a run did not have yet are left out.

    >>> changes({"batch": 512, "epochs": 9, "width": 8}, {"batch": 6000, "epochs": 50, "width": 8}, ["epochs"])
    ['batch 512 (the paper: 6,000)', 'epochs 9 (preset paper: 50)']
    """
    return [
        f"{name.replace('_', ' ')} {_shown(settings[name])} "
        f"({'preset paper' if name in unpublished else 'the paper'}: {_shown(value)})"
        for name, value in published.items()
        if name in settings and settings[name] != value
    ]


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(each) for each in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
