"""Which examples property tests draw, and how many they drew; the browser that tests of pages share, and
the command line in this process.

`make test` draws the same examples for everybody, so that a failure means a change. `tools/fresh_examples.py`, which
`make test-slow` runs, draws others: it sets the profile "fresh" and a seed for each run.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import settings

from browser import Browser

settings.register_profile("same", deadline=None, derandomize=True, database=None)
settings.register_profile("fresh", deadline=None, derandomize=False, database=None, print_blob=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            item.add_marker("property")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Count the examples of a property test; the count travels with its report, from other processes too."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None:
        return (yield)
    test, count = handle.inner_test, 0

    @wraps(test)
    def counted(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        return test(*args, **kwargs)

    handle.inner_test = counted
    try:
        return (yield)
    finally:
        handle.inner_test = test
        item.user_properties.append(("examples", count))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _counts.append(sum(count for name, count in report.user_properties if name == "examples"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if any(_counts):
        terminalreporter.write_line(f"{sum(_counts):,} examples in {sum(map(bool, _counts)):,} property tests")


_counts: list[int] = []


@pytest.fixture
def run_here(monkeypatch, capfd):
    """The command line in this process, without the seconds that a new one takes."""
    from normscope import cli

    before = signal.getsignal(signal.SIGPIPE)

    def run_in_this_process(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, printed.out, printed.err)

    yield run_in_this_process
    signal.signal(signal.SIGPIPE, before)
