"""A built wheel, installed outside the clone, works: everything the package needs at run time is inside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("normscope-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def run_python(site, *arguments):
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=site.parent, capture_output=True, text=True, check=True).stdout


def test_the_installed_package_is_the_one_that_runs(site):
    place = run_python(site, "-c", "import normscope; print(normscope.__file__)")
    assert Path(place.strip()) == site / "normscope" / "__init__.py"


def test_the_installed_command_inspects_the_demo_model_and_writes_its_page(site):
    page = site.parent / "report.html"
    result = json.loads(run_python(site, "-m", "normscope", "inspect", "--json"))
    assert len(result["norms"]) == 9
    run_python(site, "-m", "normscope", "report", "--seconds", "0", "-o", str(page))
    assert "</html>" in page.read_text(encoding="utf-8")


def test_the_installed_package_finds_the_commands_and_results_of_the_lab(site):
    listed = json.loads(run_python(site, "-m", "normscope", "reproduce", "--list", "--json"))
    assert "random-keys" in [each["name"] for each in listed["experiments"]]
    code = "from normscope.results.result import type_named; print(type_named('axes_speed').__module__)"
    assert run_python(site, "-c", code).strip() == "normscope_lab.results.axes_speed"


def test_the_wheel_carries_types_and_licence(site):
    assert (site / "normscope" / "py.typed").exists()
    assert (site / "normscope_lab" / "py.typed").exists()
    assert list(site.glob("normscope-*.dist-info/licenses/LICENSE"))
