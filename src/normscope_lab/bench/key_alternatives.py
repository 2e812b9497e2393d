"""Other ways to find which keys are selectable, timed on some keys of a set and scaled to all of them.

    seconds  =  once per set  +  reflections on every key  +  programs needed · mean time of the programs timed

Reflections and what is done once per set are measured in full. Verdicts are compared with ours on every key tried.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from normscope_lab.bench.key_sets import Keys
from normscope_lab.bench.linear_programs import PREFERS, preference
from normscope_lab.bench.published_procedure import PublishedProcedure
from normscope_lab.bench.timing import cpu_seconds
from normscope_lab.results.keys_speed import Alternative


class TimedWay:
    """Another way, tried on some keys of a set, and what that took."""

    def __init__(self, keys: Keys, mask: NDArray[np.bool_], degenerate: NDArray[np.bool_]) -> None:
        self.keys, self.mask, self.degenerate = keys, mask, degenerate
        self.once_seconds = self.reflection_seconds = self.program_seconds = 0.0
        self.reflected = self.reflections_timed = self.programs = self.programs_timed = 0
        self.failures = self.disagreements = 0

    def try_keys(self, some: list[int], most: int) -> None:
        """Try some keys, with a program for at most `most` of them."""
        raise NotImplementedError

    def total(self, ours: float) -> Alternative:
        """All keys tried, with the mean time of a program for those that were not timed."""
        programs = self.program_seconds * self.programs / max(1, self.programs_timed)
        seconds = self.once_seconds + self.reflection_seconds + programs
        return Alternative(
            seconds=seconds,
            ratio=seconds / ours,
            reflected=self.reflected,
            reflection_seconds=self.reflection_seconds,
            reflections_timed=self.reflections_timed,
            programs=self.programs,
            programs_timed=self.programs_timed,
            failures=self.failures,
            disagreements=self.disagreements,
        )

    def _time_programs(self, some: list[int], solve: Callable[[int], bool | None]) -> None:
        for key in some:
            selects, seconds = cpu_seconds(solve, key)
            self.program_seconds += seconds
            self.programs_timed += 1
            self.failures += selects is None
            self._compare(key, selects)

    def _compare(self, key: int, selects: bool | None) -> None:
        if selects is not None and not self.degenerate[key]:
            self.disagreements += selects != bool(self.mask[key])


class PublishedTimed(TimedWay):
    def __init__(self, keys: Keys, mask: NDArray[np.bool_], degenerate: NDArray[np.bool_]) -> None:
        super().__init__(keys, mask, degenerate)
        self.procedure, self.once_seconds = cpu_seconds(PublishedProcedure, keys)

    def try_keys(self, some: list[int], most: int) -> None:
        found, seconds = cpu_seconds(self._reflections_find, some)
        self.reflection_seconds += seconds
        self.reflections_timed += len(some)
        unsettled = []
        for key, settled in zip(some, found, strict=True):
            if settled:
                self._compare(key, True)
            else:
                unsettled.append(key)
        self.reflected += len(some) - len(unsettled)
        self.programs += len(unsettled)
        self._time_programs(unsettled[:most], self._program_finds)

    def _reflections_find(self, some: list[int]) -> list[bool]:
        return [self.procedure.reflections_find(key) for key in some]

    def _program_finds(self, key: int) -> bool | None:
        try:
            return self.procedure.program_finds(key)
        except ArithmeticError:
            return None


class HighsTimed(TimedWay):
    def try_keys(self, some: list[int], most: int) -> None:
        self.programs += len(some)
        self._time_programs(some[:most], self._program_prefers)

    def _program_prefers(self, key: int) -> bool | None:
        found = preference(self.keys, key)
        return None if found is None else found > PREFERS


def added(parts: Sequence[tuple[Alternative, float]], ours: float) -> Alternative:
    """What many sets take, each part times its weight; counts of what was timed are not multiplied."""
    seconds = sum(weight * part.seconds for part, weight in parts)
    return Alternative(
        seconds=seconds,
        ratio=seconds / ours,
        reflected=round(sum(weight * part.reflected for part, weight in parts)),
        reflection_seconds=sum(weight * part.reflection_seconds for part, weight in parts),
        reflections_timed=sum(part.reflections_timed for part, _ in parts),
        programs=round(sum(weight * part.programs for part, weight in parts)),
        programs_timed=sum(part.programs_timed for part, _ in parts),
        failures=sum(part.failures for part, _ in parts),
        disagreements=sum(part.disagreements for part, _ in parts),
    )
