"""The browser of the tests sees what it has to see: messages, requests, keys, themes, findings of axe-core."""

import pytest

HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>'
CALM = HEAD + "</head><body><main><h1>Calm</h1><button id=b>press</button></main></body></html>"


def test_a_calm_page_has_no_message_no_request_and_nothing_serious(browser):
    page = browser.open(CALM, fragment="a=1")
    assert page.run("location.hash") == "#a=1"
    assert page.serious() == page.messages == page.requests == []


def test_every_kind_of_complaint_is_collected(browser):
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'\">"
    script = "<script>console.error('one', 2); console.log('not this'); console.warn('three');</script>"
    page = browser.open(f"{HEAD}{policy}</head><body>{script}<script>throw Error('four')</script><img src='x.png'>")
    page.wait("document.readyState === 'complete'")
    one, three, four, blocked = page.messages
    assert (one, three) == ("one 2", "three")
    assert "four" in four
    assert "Content Security Policy" in blocked


def test_a_request_is_seen(browser):
    page = browser.open(f"{HEAD}</head><body><img src='nothing-there.png' alt=''><img src='data:image/gif;base64,'>")
    (request,) = page.requests
    assert request.endswith("nothing-there.png")


def test_keys_and_clicks_arrive(browser):
    page = browser.open(CALM)
    page.run("seen = []; b.onclick = () => seen.push('click'); b.onkeydown = (e) => seen.push(e.key); 0")
    page.press("Tab")
    page.press("Enter")
    page.press("ArrowLeft")
    page.click("#b")
    assert page.run("seen") == ["Enter", "click", "ArrowLeft", "click"]


@pytest.mark.parametrize(("dark", "still"), [(False, True), (True, False)])
def test_themes_and_motion_are_as_asked(browser, dark, still):
    page = browser.open(CALM, dark=dark, still=still, width=390, phone=True)
    assert page.run("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    assert page.run("matchMedia('(prefers-reduced-motion: reduce)').matches") == still
    page.media(printed=True)
    assert page.run("matchMedia('print').matches")


def test_axe_finds_what_is_serious(browser):
    page = browser.open(f"{HEAD}</head><body><main><h1>Pale</h1><p style='color:#ddd;background:#fff'>words</p></main>")
    (finding,) = page.serious()
    assert finding.startswith("color-contrast at ['p']")


def test_an_exception_in_a_script_is_raised_here(browser):
    with pytest.raises(RuntimeError, match="is not defined"):
        browser.open(CALM).run("nobody.knows")


def test_a_screenshot_is_as_large_as_the_page(browser, tmp_path):
    browser.open(CALM, width=300, height=200).screenshot(tmp_path / "small.png")
    header = (tmp_path / "small.png").read_bytes()[:24]
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (300, 200)
