"""The page: what it holds, that hostile names stay harmless, and that it works in a browser."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from normscope.report.norm_figures import family
from normscope.report.page import render, script_json
from normscope.results.inspection import Channel
from test_remarks import CALM_LANDING, calm_norm, inspection

HOSTILE = "</script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def norm_with_profile(name, seed, text, **changes):
    """A LayerNorm of random gains with its axes by SVD, and outputs for random inputs as those of a text."""
    rng = np.random.default_rng(seed)
    gain = np.exp(0.3 * rng.normal(size=64)) * (1 + seed)
    centring = np.eye(64) - 1 / 64
    left, lengths, _ = np.linalg.svd(8 * gain[:, None] * centring)
    inputs = rng.normal(size=(50, 64)) @ centring
    outputs = 8 * gain * inputs / np.linalg.norm(inputs, axis=1, keepdims=True)
    axes = {
        "longest": float(lengths[0]),
        "median": float(np.median(lengths[:63])),
        "shortest": float(lengths[62]),
        "anisotropy": float(lengths[0] / lengths[62]),
        "longest_channels": (Channel(7, 0.8),),
        "lengths": lengths[:63],
    }
    landing = replace(CALM_LANDING, mean_over_sigma_max=10.0 * seed, points=outputs @ left[:, :3]) if text else None
    return calm_norm(name, found={"gain": gain, **changes}, axes=axes, landing=landing)


def whole_model(text):
    layers = [norm_with_profile(f"h.{i}.{part}", i, text) for i in range(3) for part in ("ln_1", "ln_2")]
    no_surface = replace(CALM_LANDING, nearness=None, rms_angle=None)
    return inspection(
        *layers,
        norm_with_profile("grouped", 4, False, kind="lng", groups=4),
        calm_norm(
            HOSTILE,
            found={"kind": "unknown", "problem": "<b>no</b>", "eps": None, "groups": None, "gain": None},
            axes="none",
            dimension=None,
        ),
        calm_norm("projected", found={"kind": "projection"}, axes="none", landing=no_surface if text else None),
        calm_norm("flat", found={"size": 2, "gain": np.ones(2)}, axes={"lengths": np.array([1.4])}, dimension=1),
        model=f"model {HOSTILE}",
        text="sample" if text else None,
    )


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts, self._in_script = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._in_script = tag == "script"

    def handle_data(self, text):
        if self._in_script:
            self.scripts.append(text)
            self._in_script = False

    def tags(self):
        return [tag for tag, _ in self.found]


@pytest.fixture(scope="module", params=[True, False], ids=["with a text", "without a text"])
def with_text(request):
    return request.param


@pytest.fixture(scope="module")
def page(with_text):
    return render(whole_model(with_text))


@pytest.fixture(scope="module")
def elements(page):
    return Elements(page.replace(get_plotlyjs(), "plotly"))


def data_of(elements):
    (text,) = [text for text in elements.scripts if text.startswith("{")]
    return json.loads(text)


def test_plotly_is_embedded_exactly_once(page):
    assert page.count(get_plotlyjs()) == 1


def test_nothing_is_fetched_from_anywhere(elements):
    assert not [attributes for _, attributes in elements.found if "src" in attributes or "href" in attributes]
    policy = [attributes["content"] for _, attributes in elements.found if "http-equiv" in attributes]
    assert policy[0].startswith("default-src 'none'")


def test_a_hostile_name_adds_no_element(elements):
    assert elements.tags().count("script") == 3
    assert not {"img", "b"} & set(elements.tags())
    assert data_of(elements)["norms"][7]["name"] == HOSTILE


def test_names_are_escaped_where_plotly_reads_markup(elements):
    repeated = inspection(*[norm_with_profile(f"<a href='x'>.{i}.ln", i, True) for i in range(2)])
    traces = data_of(Elements(render(repeated).replace(get_plotlyjs(), "plotly")))["depth"]["axes"]["data"]
    assert "<a" not in "".join(trace["legendgroup"] + "".join(trace["text"]) for trace in traces)


def test_every_norm_has_a_row_an_option_and_its_facts(elements):
    tags = elements.tags()
    count = len(whole_model(True).norms)
    assert tags.count("option") == count
    assert len([1 for _, attributes in elements.found if "data-norm" in attributes]) == count
    assert ["read by", "h.0.attn"] in data_of(elements)["norms"][0]["facts"]


def test_landing_is_shown_only_with_a_text(elements, with_text):
    data = data_of(elements)
    assert ("nearness" in data["depth"]) == ("means" in data["depth"]) == ("bending" in data["depth"]) == with_text
    assert (["H in g groups over H as it is", "2: 2.2×, 16: 30×"] in data["norms"][0]["facts"]) == with_text
    assert (data["norms"][0]["points"] is not None) == with_text


def test_what_has_no_ellipsoid_says_why(elements):
    norms = {norm["name"]: norm for norm in data_of(elements)["norms"]}
    for name, reason in ((HOSTILE, "fits no member"), ("projected", "unbounded"), ("flat", "dimension 1")):
        assert norms[name]["longest"] is None
        assert reason in norms[name]["note"]
    assert "product of 4 ellipsoids" in norms["grouped"]["note"]


def test_axes_of_very_different_lengths_are_not_drawn_to_one_scale():
    needle = np.array([100.0, 2.0, 1.0])
    page = render(inspection(calm_norm(axes={"lengths": needle}))).replace(get_plotlyjs(), "plotly")
    (norm,) = data_of(Elements(page))["norms"]
    assert not norm["proportional"]
    assert "the first is 100 times the third" in norm["note"]


def test_a_model_without_norms_still_has_a_page():
    page = render(inspection())
    assert "No normalization layer was found" in page


def test_half_of_a_surrogate_pair_in_a_name_can_still_be_written():
    assert render(inspection(calm_norm("bad \ud800 name"))).encode("utf-8")


def test_the_page_of_a_large_model_stays_below_eight_megabytes():
    rng = np.random.default_rng(0)
    landing = replace(CALM_LANDING, points=rng.normal(size=(400, 3)))
    gain, lengths = rng.normal(size=8192), np.sort(rng.random(8191))[::-1]
    norms = [
        calm_norm(
            f"model.layers.{i}.post_attention_layernorm",
            found={"gain": gain},
            axes={"lengths": lengths},
            landing=landing,
        )
        for i in range(161)
    ]
    assert len(render(inspection(*norms)).encode()) < 8e6


plain = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(plain)
def test_json_in_a_script_is_json_without_markup_or_numbers_that_are_not(value):
    def refuse(name):
        raise AssertionError(name)

    text = script_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    json.loads(text, parse_constant=refuse)


@given(st.text())
def test_json_in_a_script_keeps_every_string(value):
    assert json.loads(script_json(value)) == value


def test_the_same_norm_of_every_layer_is_one_family():
    assert family("model.layers.10.norm") == family("model.layers.9.norm") != family("model.norm")


def test_a_notebook_table_is_escaped_and_complete():
    table = Elements(whole_model(True)._repr_html_())
    assert set(table.tags()) == {"table", "caption", "thead", "tr", "th", "tbody", "td", "p"}
    assert table.tags().count("tr") == 1 + len(whole_model(True).norms)


LISTEN = """<script>
const problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => problems.push(event.violatedDirective + " " + event.blockedURI));
for (const method of ["error", "warn"]) console[method] = (...words) => problems.push(words.join(" "));
window.alert = () => problems.push("a name ran as code");
</script>"""

ACT = """<script>
addEventListener("load", async () => {
  const outcome = { problems };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const heading = (text) => all("#norms thead th").find((cell) => cell.innerText.trim() === text);
  const names = () => all("#norms tbody tr:not([hidden]) th").map((cell) => cell.innerText);
  const ellipsoid = document.getElementById("chosen-ellipsoid");
  const picture = () => Plotly.toImage(ellipsoid, { format: "png", width: 300, height: 300 });
  const tops = () => ellipsoid.data[0].z[0][0];
  try {
    outcome.original = names();
    const longest = heading("longest axis");
    longest.firstElementChild.click();
    outcome.ascending = { names: names(), sort: longest.getAttribute("aria-sort") };
    longest.firstElementChild.click();
    outcome.descending = { names: names(), sort: longest.getAttribute("aria-sort") };
    heading("norm").firstElementChild.click();
    outcome.byName = { names: names(), sort: longest.getAttribute("aria-sort") };

    const filter = document.getElementById("filter");
    filter.value = "LN_2";
    filter.dispatchEvent(new Event("input"));
    outcome.filtered = names();
    filter.value = "";
    filter.dispatchEvent(new Event("input"));

    const select = document.getElementById("choice");
    const show = async (index) => {
      select.value = String(index);
      select.dispatchEvent(new Event("change"));
      return { top: tops(), traces: ellipsoid.data.length, image: await picture() };
    };
    outcome.first = await show(0);
    outcome.other = await show(6);
    outcome.changed = outcome.first.image !== outcome.other.image;
    delete outcome.first.image;
    delete outcome.other.image;

    document.querySelector('tr[data-norm="8"] td').click();
    outcome.unbounded = {
      selected: select.value,
      hidden: ellipsoid.hidden,
      note: document.getElementById("note").textContent,
    };
    document.querySelector('tr[data-norm="7"] button').click();
    outcome.unknown = { facts: document.getElementById("facts").innerText, images: document.images.length };
    document.querySelector('tr[data-norm="1"] button').click();
    outcome.back = { hidden: ellipsoid.hidden, current: all("tr[aria-current]").length };
    outcome.plots = all(".js-plotly-plot .main-svg").length > 0;
    outcome.uploads = all("[data-title]").filter((button) => /share|cloud/i.test(button.dataset.title)).length;
    dispatchEvent(new Event("beforeprint"));
    dispatchEvent(new Event("afterprint"));
  } catch (error) {
    problems.push(String(error.stack));
  }
  const report = document.createElement("pre");
  report.id = "outcome";
  report.textContent = JSON.stringify(outcome);
  document.body.append(report);
});
</script>"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What a browser saw and did on the page of a model with a text, whose grouped norm has no points."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH to open the page with")
    folder = tmp_path_factory.mktemp("page")
    page, watched = render(whole_model(text=True)), folder / "watched.html"
    watched.write_text(
        page.replace("<head>", f"<head>{LISTEN}", 1).replace("</body>", f"{ACT}</body>"), encoding="utf-8"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    flags += ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", f"--user-data-dir={folder / 'profile'}"]
    command = [
        CHROMIUM,
        *flags,
        "--window-size=800,600",
        "--virtual-time-budget=20000",
        "--dump-dom",
        watched.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (found,) = [text for tag, text in re.findall(r'<(pre) id="outcome">(.*?)</pre>', dom, flags=re.DOTALL)]
    return json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_the_browser_reports_no_problem(outcome):
    assert outcome["problems"] == []
    assert outcome["plots"]
    assert outcome["uploads"] == 0


def test_a_heading_sorts_the_table_with_missing_values_last(outcome):
    norms = {norm.name: norm.axes and norm.axes.longest for norm in whole_model(text=True).norms}
    known = sorted((name for name in norms if norms[name] is not None), key=norms.get)
    missing = [HOSTILE, "projected"]
    lengths = {order: [norms[name] for name in outcome[order]["names"]] for order in ("ascending", "descending")}
    assert lengths["ascending"] == [norms[name] for name in known] + [None, None]
    assert lengths["descending"] == [norms[name] for name in reversed(known)] + [None, None]
    assert set(outcome["ascending"]["names"][-2:]) == set(missing)
    assert (outcome["ascending"]["sort"], outcome["descending"]["sort"]) == ("ascending", "descending")


def test_text_columns_sort_too_and_only_one_heading_is_marked(outcome):
    names = outcome["byName"]["names"]
    assert names.index("flat") < names.index("grouped") < names.index("h.0.ln_1") < names.index("projected")
    assert outcome["byName"]["sort"] == "none"


def test_the_filter_keeps_names_that_contain_the_text(outcome):
    assert sorted(outcome["filtered"]) == ["h.0.ln_2", "h.1.ln_2", "h.2.ln_2"]


def test_choosing_another_norm_changes_the_picture(outcome):
    norms = {norm.name: norm for norm in whole_model(text=True).norms}
    assert outcome["changed"]
    for shown, name, traces in (("first", "h.0.ln_1", 3), ("other", "grouped", 2)):
        assert outcome[shown]["top"] == pytest.approx(norms[name].axes.lengths[2], rel=1e-3)
        assert outcome[shown]["traces"] == traces


def test_clicking_a_row_chooses_its_norm(outcome):
    assert outcome["unbounded"]["selected"] == "8"
    assert outcome["unbounded"]["hidden"]
    assert "unbounded" in outcome["unbounded"]["note"]
    assert "<b>no</b>" in outcome["unknown"]["facts"]
    assert outcome["unknown"]["images"] == 0
    assert outcome["back"] == {"hidden": False, "current": 1}
