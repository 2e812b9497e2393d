"""What every result type keeps: one line, a table, a schema, a file; a toy type shows that nothing else is needed."""

import csv
import io
import itertools
import json
from dataclasses import dataclass, field
from pkgutil import iter_modules
from typing import Annotated

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import save

import normscope_lab.results
from normscope.errors import InputError
from normscope.report.terminal import as_csv, as_text
from normscope.results import names
from normscope.results.describe import IN_ROW, NOT_IN_JSON, Column, Table, annotated, columns_of
from normscope.results.result import Result, load, load_bytes, named, type_named


@dataclass(frozen=True)
class Weather:
    wind: Annotated[float, Column("wind", "Its speed, in metres a second.", ".1f")]


@dataclass(frozen=True)
class Town:
    name: Annotated[str, Column("town", "Where it is.")]
    people: Annotated[int | None, Column("people", "Who live there.", ",")]
    weather: Annotated[Weather | None, IN_ROW] = None
    rain: Annotated[np.ndarray | None, NOT_IN_JSON] = field(default=None, compare=False)

    @property
    def large(self) -> Annotated[bool | None, Column("large", "Whether more than a thousand live there.", brief=False)]:
        return None if self.people is None else self.people > 1000


@dataclass(frozen=True, repr=False)
class Towns(Result, kind="towns_of_a_test", remarked_by="test_result_contract:remarks"):
    """Towns."""

    country: str
    towns: Annotated[tuple[Town, ...], Table("Towns of {0.country}", empty="There is no town.")]
    notes: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Towns({self.country}: {len(self.towns)} towns)"


def remarks(result):
    yield f"{result.country} has {len(result.towns)} towns."


HOSTILE = "<b>[red]\x1b[2J{0.country}"
TOY = Towns(
    HOSTILE,
    (Town("Ahaus", 12345, Weather(2.04), np.arange(3.0)), Town(HOSTILE, None)),
    {"seconds": 0.5},
)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "test_result_contract", sys.modules[__name__])


def test_a_new_type_appears_in_the_terminal_the_notebook_the_schema_and_csv():
    text = as_text(TOY)
    assert "12,345" in text
    assert "2.0" in text
    assert "large" not in text  # only with all columns
    assert "has 2 towns" in text
    assert "large" in as_text(TOY, everything=True)
    page = TOY._repr_html_()
    assert '<th title="Its speed, in metres a second."' in page
    description = TOY.json_schema()["properties"]["towns"]["items"]["properties"]["people"]["description"]
    assert description == "Who live there."
    rows = list(csv.reader(io.StringIO(as_csv(TOY))))
    assert rows[0] == ["town", "people", "wind", "large"]
    assert rows[1] == ["Ahaus", "12345", "2.04", "True"]
    assert rows[2][1:] == ["", "", ""]
    assert str(Towns("nowhere", ())).endswith("There is no town.")


def test_names_from_a_model_can_do_nothing():
    assert "\x1b" not in as_text(TOY)
    assert "[red]" in as_text(TOY)
    assert "<b>" not in TOY._repr_html_()


def test_a_file_gives_back_what_was_saved(tmp_path):
    path = tmp_path / "towns.safetensors"
    TOY.save(path)
    again = load(path)
    assert again == TOY
    np.testing.assert_array_equal(again.towns[0].rain, np.arange(3.0))
    assert again.towns[1].rain is None
    jsonschema.validate(TOY.to_dict(), Towns.json_schema())
    with pytest.raises(FileExistsError, match="exists"):
        TOY.save(path)
    TOY.save(path, force=True)
    assert path.read_bytes() == TOY.to_bytes() == again.to_bytes()
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        TOY.save(tmp_path / "towns.json")


def altered(**changes):
    payload = {**TOY.to_dict(), **changes}
    metadata = {"format": "normscope result 1", "result": json.dumps(payload)}
    return save({"towns_of_a_test.towns.0.rain": np.arange(3.0)}, metadata=metadata)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be a result saved"),
        (b"\xff" * 40, "must be a result saved"),
        (TOY.to_bytes()[:60], "must be a result saved|can't be read"),
        (TOY.to_bytes()[:-5], "can't be read as a result"),
        (save({"a": np.ones(2)}), "must be a result saved"),
        (save({"a": np.ones(2)}, metadata={"format": "normscope result 1", "result": "[" * 10**5}), "can't be read"),
        (save({}, metadata={"format": "normscope result 1", "result": "{}"}), "has no type"),
        (altered(type="os"), "type must be a kind of result, got 'os'"),
        (altered(type="../x"), "type must be a kind of result"),
        (altered(schema_version=7), "schema_version must be 1, got 7"),
        (altered(country=3), "country must be str, got 3"),
        (altered(towns=[{"name": "a"}]), "people is missing"),
        (altered(towns=3), "towns must be"),
        (altered(more=3), "'more' does not follow"),
        (altered(notes={"seconds": "x"}), "seconds must be float"),
        (altered(towns=[]), "towns.0.rain' is not part"),
    ],
    ids=itertools.count(),
)
def test_damaged_and_forged_files_are_refused_in_one_line(content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_bytes(content, "towns.safetensors")
    assert len(str(caught.value)) < 500


def test_what_follows_from_fields_cannot_be_forged():
    payload = TOY.to_dict()
    payload["towns"][0]["large"] = False
    with pytest.raises(InputError, match="'towns' does not follow"):
        load_bytes(altered(towns=payload["towns"]), "towns.safetensors")


def test_what_has_no_picture_says_so():
    with pytest.raises(InputError, match="Towns has no picture"):
        TOY.plot()


KINDS = [*names(), *(module.name for module in iter_modules(normscope_lab.results.__path__))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_describes_itself(kind):
    found = type_named(kind)
    assert found.kind == kind
    assert found.__name__.lower() == kind.replace("_", "")  # normscope.results finds it by that
    assert found.__doc__
    jsonschema.Draft202012Validator.check_schema(found.json_schema())
    for place in (found.checked_by, found.plotted_by, found.remarked_by, found.shown_by):
        assert place is None or callable(named(place))
    assert "__repr__" in vars(found)
    for _, table, rows in annotated(found, Table):
        columns = [column for _, column, _ in columns_of(rows.__args__[0])]
        assert table.title
        assert sum(column.brief for column in columns) <= 8
        assert len({column.heading for column in columns}) == len(columns)
        for column in columns:
            assert column.meaning.endswith(".")
