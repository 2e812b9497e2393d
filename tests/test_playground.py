"""The playground in a browser: its numbers are those of the library, and everybody can use it."""

import importlib.util
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import normscope as ns
from normscope.certificates.check_networks import exact_labels
from normscope.certificates.network_weights import StoredNetwork
from normscope.cli.app import app
from normscope.report.playground import playground_html, playground_parts, short_js
from normscope.results.memorized import Memorized

ROOT = Path(__file__).parent.parent
STATES = {  # name: link
    "inputs": "",
    "half-way through projecting": "t=0.5",
    "projected": "t=1",
    "scaling": "t=1.35",
    "a circle": "t=2&follow=9",
    "gains on the way": "t=2.6",
    "an ellipse": "t=4&gain=1.9,-0.15,0.2",
    "one gain 0": "t=3&gain=1.3,0,1",
    "two gains 0": "t=4&gain=1.3,0,0",
    "large eps": "t=2&eps=1&seed=3",
    "eps 0": "t=4&eps=0&seed=11",
    "a sphere": "kind=rmsnorm&t=2",
    "an ellipsoid": "kind=rmsnorm&t=4&tilt=30",
    "a dead channel without projection": "kind=rmsnorm&t=4&gain=1,0,2",
    "a cube": "kind=rmsnorm&groups=3&t=2&eps=0.1",
    "projection only": "kind=projection&t=4&seed=2",
    "scaling only": "kind=scaling&t=4&seed=5",
    "affine only": "kind=affine&t=4",
    "4 channels": "channels=4&t=4",
    "4 channels in 2 groups": "kind=lng&channels=4&groups=2&t=4&eps=0.2",
    "4 channels in 2 circles": "kind=rmsnorm&channels=4&groups=2&t=2.5",
    "6 channels": "channels=6&t=3",
    "6 channels in 2 groups": "kind=lng&channels=6&groups=2&t=4&seed=1",
    "6 channels in 3 groups": "kind=lng&channels=6&groups=3&t=2&eps=0.5",
    "6 channels in 3 circles": "kind=rmsnorm&channels=6&groups=3&t=4",
    "aimed": "t=4&aim=true&follow=4",
    "one input": "t=4&inputs=1,2,4",
    "two inputs": "t=4&inputs=1,2,4;2,1,4",
    "a constant input, eps 0": "t=4&eps=0&inputs=2,2,2;1,2,4;5,-1,0.1;3,3,2",
    "one input three times": "t=2&inputs=1,2,4;1,2,4;0,5,-1;1,2,4;3,1,1",
    "inputs along one line": "inputs=0,0,0;1,1,1;2,2,2;4,4,4",
    "a large mean": "t=2&eps=0&inputs=1000,1000.001,999.999;1000,1000.002,1000;999.999,1000,1000",
}


@pytest.fixture(scope="module")
def html():
    return playground_html()


@pytest.fixture(scope="module")
def page(browser, html):
    opened = browser.open(html, still=True)
    yield opened
    assert opened.messages == opened.requests == []
    opened.close()


def opened_state(page, link):
    return page.run(f"normscopePlayground.open({json.dumps(link)}), normscopePlayground.state()")


def same_as_the_library(state):
    """Compare everything that a state shows with `ns.Norm`, `Ellipsoid` and `ns.selectable`."""
    given, t = state["norm"], state["t"]
    norm = ns.Norm(**{name: given[name] for name in ("gain", "bias", "eps", "project", "scale", "groups")})
    x = np.array(state["inputs"])
    projected = norm.project(x)
    scaled = norm.scale(projected)
    stops = np.stack([x, projected, scaled, norm.gain * scaled, norm(x)])
    size = max(1.0, np.abs(x).max())
    np.testing.assert_allclose(np.array(state["stops"]).swapaxes(0, 1), stops, rtol=0, atol=1e-12 * size)
    before = min(int(t), 3)
    keys = stops[before] + (t - before) * (stops[before + 1] - stops[before])
    shown = np.array(state["keys"])
    np.testing.assert_allclose(shown, keys, rtol=0, atol=1e-12 * size)
    if norm.scales:
        np.testing.assert_allclose(state["semi_axes"], norm.ellipsoid.lengths, rtol=1e-12, atol=1e-12)
    else:
        assert state["semi_axes"] is None
    selection = ns.selectable(in_their_span(shown))
    assert selection.holds
    decided = ~selection.near_ties
    assert (np.array(state["selectable"]) == selection.mask)[decided].all()
    whole = ns.selectable(shown)  # keys in a plane of three dimensions: all that are lost are near ties
    assert (np.array(state["selectable"]) == whole.mask)[~whole.near_ties].all()
    for i, verdict in enumerate(state["verdicts"]):
        others = np.delete(shown, i, axis=0)
        if verdict["selectable"] and len(others):
            lead = (verdict["query"] @ (shown[i] - others).T).min()
            assert lead > 0
            assert lead == pytest.approx(verdict["margin"], abs=1e-12 * size)
        elif not verdict["selectable"]:
            rows, weights = zip(*verdict["weights"], strict=True)
            assert i not in rows
            assert min(weights) >= 0
            np.testing.assert_allclose(np.array(weights) @ shown[list(map(int, rows))], shown[i], atol=1e-9 * size)
    alike_is_right(state, norm, shown, size)
    np.testing.assert_allclose(state["scores"], shown @ state["query"], atol=1e-12 * size)
    assert sum(state["attention"]) == pytest.approx(1, abs=1e-12)
    return selection


def in_their_span(keys):
    """Coordinates in the flat that the keys span, where rounding can't lift one of them out of it."""
    away = keys - keys.mean(axis=0)
    _, sizes, axes = np.linalg.svd(away)
    rank = max(1, np.count_nonzero(sizes > 1e-10 * max(1e-12, np.abs(keys).max())))
    return away @ axes[:rank].T


def alike_is_right(state, norm, shown, size):
    """A query that scores all keys alike, for all inputs, is shown where there is one."""
    query, t = state["equal_query"], state["t"]
    part = np.clip(t - 2, 0, 1)
    gain = 1 + (norm.gain - 1) * part
    if (norm.projects and t >= 1) or (np.abs(gain) < 1e-12).any():
        assert np.linalg.norm(query) == pytest.approx(1, abs=1e-12)
        assert np.ptp(shown @ query) <= 1e-12 * size
        if norm.scales:
            dead = ns.Norm(gain=gain, project=norm.projects, groups=norm.groups).ellipsoid.dead_directions
            np.testing.assert_allclose(dead @ (dead.T @ query), query, atol=1e-12)
    else:
        assert query is None


@pytest.mark.parametrize("link", STATES.values(), ids=STATES)
def test_every_number_is_that_of_the_library(page, link):
    selection = same_as_the_library(opened_state(page, link))
    assert set(page.run("normscopePlayground.link()").split("&")) == set(link.split("&"))
    if "inputs" not in link and "lng&channels=4" not in link and "groups=3" not in link:
        assert not selection.near_ties.any()


@settings(max_examples=25)
@given(data=st.data())
def test_and_for_any_state(page, data):
    kind = data.draw(st.sampled_from(["layernorm", "lng", "rmsnorm", "projection", "scaling", "affine"]))
    channels = data.draw(st.sampled_from([3, 4, 6]))
    gain, bias = (data.draw(st.lists(st.floats(-3, 3), min_size=6, max_size=6)) for _ in range(2))
    values = {
        "kind": kind,
        "channels": channels,
        "groups": data.draw(st.sampled_from([1, 2, 3, 4, 6])),
        "gain": [0.0 if abs(g) < 1e-3 else g for g in gain],
        "bias": bias,
        "eps": data.draw(st.sampled_from([0, 1e-6, 1e-3, 0.3])),
        "t": data.draw(st.integers(0, 400)) / 100,
        "seed": data.draw(st.integers(0, 10**6)),
        "tilt": data.draw(st.integers(0, 90)),
        "aim": data.draw(st.booleans()),
        "inputs": None,
    }
    state = page.run(f"normscopePlayground.set({json.dumps(values)}), normscopePlayground.state()")
    same_as_the_library(state)
    assert opened_state(page, page.run("normscopePlayground.link()")) == state


@pytest.mark.parametrize(
    "link",
    [
        "t=3",
        "t=4&gain=1.9,-0.15,0.4",
        "kind=rmsnorm&t=4",
        "kind=rmsnorm&t=3&groups=3",
        "kind=lng&channels=6&groups=2&t=4",
        "channels=6&t=4",
        "kind=rmsnorm&channels=6&t=3",
        "kind=rmsnorm&channels=6&groups=6&t=4",
        "channels=4&t=3",
        "kind=rmsnorm&channels=4&groups=2&t=4",
        "kind=lng&channels=6&groups=3&t=4",
    ],
)
def test_the_outline_reaches_as_far_as_the_ellipsoid(page, link):
    """Seen along channel 2, channel 1 is to the right and 3 upwards; pictures of two channels have 1 and 2."""
    state = opened_state(page, f"{link}&yaw=0&pitch=0")
    norm = ns.Norm(**state["norm"])
    page.run("window.box = (e) => { const b = e.getBBox(); return [b.x, b.y, b.width, b.height] }; 0")
    boxes = np.array(page.run("[...document.querySelectorAll('[data-part=space] .limit:not(.thin)')].map(box)"))
    pictures = page.run("document.querySelectorAll('[data-part=space] [data-key=\"0\"]').length")
    first = boxes[: len(boxes) // pictures]
    width, height = (first[:, :2] + first[:, 2:]).max(axis=0) - first[:, :2].min(axis=0)
    rows = np.eye(norm.size)[[0, 1 if norm.size // pictures == 2 else 2]]
    reach = norm.ellipsoid.support(rows) + norm.ellipsoid.support(-rows)
    assert width / height == pytest.approx(reach[0] / reach[1], rel=0.01)


def test_scaling_frees_keys_that_projecting_has_lost(page):
    counts = [sum(opened_state(page, f"t={t}")["selectable"]) for t in (0, 1, 1.5, 2, 3, 4)]
    inputs, projected, on_the_way, *rest = counts
    assert projected < inputs
    assert projected < on_the_way
    assert rest == [14, 14, 14]


def test_an_aimed_query_selects_its_key(page):
    state = opened_state(page, "t=4&aim=true&follow=4")
    assert np.argmax(state["scores"]) == np.argmax(state["attention"]) == 4
    lost = opened_state(page, "t=1")["selectable"].index(False)
    opened_state(page, f"t=1&aim=true&follow={lost}")
    assert f"No query selects key {lost + 1}" in page.run("document.body.innerText")


@pytest.mark.parametrize(
    "link",
    [
        "gain=<img src=x onerror=alert(1)>,1,1",
        "gain=1,2&bias=1,,1&eps=-1&t=99&follow=1e9&kind=constructor&tab=none&data=__proto__&channels=5",
        "groups=2&kind=lng&inputs=1,2;3&yaw=NaN&seed=Infinity&pitch=",
        "&&==&%E0%A4%A&" + "x" * 10_000,
    ],
)
def test_a_link_that_makes_no_sense_is_harmless(page, link):
    state = opened_state(page, link)
    same_as_the_library(state)
    assert state["norm"]["gain"] == [1.3, 0.7, 1]
    assert page.run("document.images.length") == 0


# ---- creases


def tool():
    spec = importlib.util.spec_from_file_location("playground_networks", ROOT / "tools" / "playground_networks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(net):
    kind = np.float32 if net["single"] else np.float64
    return [np.array(layer, dtype=kind).astype(np.float64) for layer in net["layers"]]


NETS = json.loads(tool().FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NETS)
def test_creases_are_those_of_the_network(page, name):
    """Every stop against a second computation; places, runs and classes against exact arithmetic."""
    net, state = NETS[name], opened_state(page, f"tab=creases&data={name}&at=1.25")
    layers, labels = weights_of(net), np.array(net["labels"])
    samples = np.arange(float(len(labels)))[:, None]
    stops, here = [samples], samples
    for number, layer in enumerate(layers):
        here = here @ layer[:, :-1].T + layer[:, -1]
        stops.append(here)
        if number < len(layers) - 1:
            here = ns.Norm(gain=np.ones(3), eps=net["eps"])(here)
            stops.append(here)
    for number, stop in enumerate(stops):
        np.testing.assert_allclose([each[number] for each in state["stops"]], stop, rtol=0, atol=1e-12)
    found = exact_labels(StoredNetwork(layers, net["eps"]), samples)
    assert state["winners"] == found.winners.tolist() == labels.tolist() == state["labels"]
    assert state["samples"] == samples[:, 0].tolist()


OTHER_CPU = 1e-4  # a search in single precision ends some units in the last place apart on another CPU


@pytest.mark.parametrize("name", NETS)
def test_networks_are_what_memorize_finds(page, name):
    module = tool()
    result: Memorized = module.network(*module.SETS[name])
    assert result.holds
    assert (result.least_depth, result.eps, len(result.classes)) == tuple(
        NETS[name][k] for k in ("least", "eps", "classes")
    )
    for kept, layer in zip(weights_of(NETS[name]), result.layers, strict=True):
        np.testing.assert_allclose(kept, layer, rtol=OTHER_CPU, atol=1e-9)
    state = opened_state(page, f"tab=creases&data={name}")
    assert state["runs"] == [stage.runs for stage in result.stages]
    np.testing.assert_allclose(state["places"], result.journey, rtol=0, atol=OTHER_CPU)
    letters = [stage.labels for stage in result.stages]
    assert ["".join("ox+"[label] for label in row) for row in state["labels_along"]] == letters


# ---- everybody can use it


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("link", ["t=1", "kind=lng&channels=6&groups=2&t=2", "tab=creases&at=2"])
def test_axe_finds_nothing_serious(browser, html, link, dark):
    page = browser.open(html, fragment=link, dark=dark, still=True)
    assert page.serious() == []
    assert page.messages == page.requests == []
    page.close()


@pytest.mark.parametrize("width", [320, 390, 760])
@pytest.mark.parametrize("link", ["t=2", "kind=rmsnorm&channels=6&groups=3&t=4", "tab=creases&at=1"])
def test_a_narrow_page_does_not_scroll_sideways(browser, html, link, width):
    page = browser.open(html, fragment=link, width=width, phone=True)
    assert page.run("document.documentElement.scrollWidth") <= width
    sizes = page.run("[...document.querySelectorAll('svg text')].map((e) => parseFloat(getComputedStyle(e).fontSize))")
    assert min(sizes) >= 12
    texts = page.run(
        "[...document.querySelectorAll('svg.drawing text')].filter((e) => e.checkVisibility()).map((e) =>"
        "[e.getBoundingClientRect().left, e.getBoundingClientRect().right, e.textContent])"
    )
    assert [words for left, right, words in texts if left < -1 or right > width + 1] == []
    page.close()


def test_the_keyboard_does_all_that_the_mouse_does(browser, html):
    page = browser.open(html, still=True)
    focused = "(document.activeElement.dataset.part || document.activeElement.textContent.trim())"
    seen = []
    for _ in range(60):
        page.press("Tab")
        if page.run("document.activeElement === document.body"):
            break
        seen.append(page.run(focused))
    assert {
        "Dark",
        "The steps of a norm",
        "Input",
        "Bias",
        "stage",
        "Play",
        "tilt",
        "aim",
        "kind",
        "eps",
        "follow",
    } <= set(seen)
    before = page.run("normscopePlayground.state()")
    page.run("document.querySelector('[data-part=stage]').focus()")
    page.press("ArrowRight")
    page.press(" ")
    after = page.run("normscopePlayground.state()")
    assert (before["t"], after["t"]) == (0, 1)
    assert after["yaw"] == pytest.approx(before["yaw"] + 0.1)
    page.run("document.querySelector('[role=tab]').focus()")
    page.press("ArrowRight")
    assert page.run("normscopePlayground.state().tab") == "creases"
    assert page.run("document.activeElement.id") == "pg-tab-creases"
    page.close()


def test_the_mouse_turns_the_picture_and_picks_a_point(browser, html):
    page = browser.open(html, fragment="t=2", still=True)
    yaw = page.run("normscopePlayground.state().yaw")
    page.drag("[data-part=space]", right=50)
    assert page.run("normscopePlayground.state().yaw") == pytest.approx(yaw + 0.4, abs=1e-3)
    page.click("[data-key='6'] .mark-0")
    assert page.run("normscopePlayground.state().follow") == 6
    page.wait("location.hash.includes('follow=6')")
    page.close()


def test_playing_moves_through_every_step_and_ends(browser, html):
    page = browser.open(html, fragment="t=3.9")
    page.click("[data-play]")
    page.wait("normscopePlayground.state().t === 4")
    page.wait("document.querySelector('[data-play]').textContent === 'Play'")
    page.click("#pg-steps [data-go='0']")
    page.wait("normscopePlayground.state().t === 0")
    assert page.run("document.querySelector('[data-play]').textContent") == "Play"
    page.close()


def test_choices_lead_to_norms_that_exist(page):
    def chosen(name, value):
        page.run(
            f"(e => {{ e.value = '{value}'; e.dispatchEvent(new Event('input', {{bubbles: true}})) }})"
            f"(document.querySelector('[data-part={name}]'))"
        )
        return page.run("normscopePlayground.state()")

    opened_state(page, "t=2")
    state = chosen("kind", "lng")
    assert (state["kind"], state["norm"]["groups"], state["channels"]) == ("lng", 2, 6)
    same_as_the_library(state)
    state = chosen("groups", "1")
    assert state["kind"] == "layernorm"
    state = chosen("channels", "3")
    assert len(state["inputs"][0]) == 3
    same_as_the_library(state)


def test_it_prints_in_light_colours_without_controls(browser, html):
    page = browser.open(html, dark=True)
    page.media(dark=True, printed=True)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(252, 252, 250)"
    assert not page.run("document.querySelector('.transport').checkVisibility()")
    page.close()


def test_it_lives_inside_another_page(browser):
    parts = playground_parts(heading=4)
    start = "window.play = normscopePlayground.init(document.querySelector('.ns-playground'))"
    page = browser.open(
        f"<!doctype html><html lang=en><title>t</title><style>{parts.style}</style><main><h1>Report</h1>"
        f"<details><summary>Playground</summary>{parts.body}</details></main>"
        f"<script>{parts.script}</script><script>{start}</script>",
        fragment="norm=3",
        still=True,
    )
    page.click("summary")  # it was closed when the playground came to life
    page.wait("document.querySelector('[data-part=space]').viewBox.baseVal.width > 400")
    same_as_the_library(page.run("play.set({t: 4}), play.state()"))
    page.run("new Promise((done) => setTimeout(done, 300))")
    assert page.run("location.hash") == "#norm=3"
    assert page.messages == page.requests == []
    page.close()


# ---- the file


class Elements(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.found = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_file_is_small_and_fetches_nothing(html):
    assert len(html.encode()) < 60_000
    found = Elements(html).found
    assert [attributes for _, attributes in found if "src" in attributes] == []
    assert [attributes["href"] for _, attributes in found if "href" in attributes] == ["data:,"]
    assert "default-src 'none'" in next(a["content"] for _, a in found if "http-equiv" in a)


def test_the_command_writes_the_page_and_replaces_nothing(tmp_path, monkeypatch, html):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert run(app, ["playground"]).exit_code == 0
    assert Path("playground.html").read_text(encoding="utf-8") == html
    Path("playground.html").write_text("mine", encoding="utf-8")
    assert isinstance(run(app, ["playground"]).exception, FileExistsError)
    assert Path("playground.html").read_text(encoding="utf-8") == "mine"
    assert run(app, ["playground", "--force", "-o", "playground.html"]).exit_code == 0
    assert Path("playground.html").read_text(encoding="utf-8") == html


@pytest.mark.parametrize(
    ("code", "short"),
    [
        ("a = b + +c - -d;", "a=b+ +c- -d;"),
        ("return [1, 2]\nfoo()", "return[1,2]\nfoo()"),
        ("x = 'a  b' // no\ny", "x='a  b'\ny"),
        ("`a ${ { b: `c  ${ d }` } } e  `", "`a ${{b:`c  ${d}`}} e  `"),
        ('"\\" // kept" ;', '"\\" // kept";'),
        ("a\n  ? b\n  : c\n++d", "a?b:c\n++d"),
        ("a++\nb =\n  c", "a++\nb=c"),
        ("const f = (a) => {\n  return a;\n};\n", "const f=(a)=>{return a};"),
    ],
)
def test_shortening_keeps_what_means_something(code, short):
    assert short_js(code) == short
