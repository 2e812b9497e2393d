"""A picture of every panel of a report: light, dark and on a phone.

    python tools/screenshots.py MODEL FOLDER [--text FILE] [--page report.html]

MODEL is what `normscope report` takes, or "demo"; --page takes a page that is already there. Needs Chromium.
"""

import argparse
import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOOKS = {"light": {"width": 1280}, "dark": {"width": 1280, "dark": True}, "phone": {"width": 390, "phone": True}}
PARTS = "main > header, #at-findings, .finding, #map, .norm-head, .panel, #at-made"


def main() -> None:
    """Write the page, open it, and take the pictures."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Browser  # type: ignore[import-not-found]
    from normscope import demo_model
    from normscope.data import sample_text
    from normscope.report_file import write_report

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        page = given.page
        if page is None:
            page = Path(folder) / "report.html"
            model = demo_model() if given.model == "demo" else Path(given.model)
            write_report(model, page, text=given.text or sample_text())
        for look, how in LOOKS.items():
            shown = browser.open(page, **how)
            boxes = shown.run(
                f"[...document.querySelectorAll({PARTS!r})].map((part, at) => {{ "
                "const box = part.getBoundingClientRect(); "
                "return [part.id || part.tagName.toLowerCase() + at, scrollX + box.x, scrollY + box.y, "
                "box.width, box.height] })"
            )
            for name, x, y, width, height in boxes:
                clip = {"x": x - 8, "y": y - 8, "width": width + 16, "height": min(height + 16, 4000), "scale": 1}
                taken = shown.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
                (given.folder / f"{look}-{name}.png").write_bytes(base64.b64decode(taken["data"]))
            print(f"{look}: {len(boxes)} pictures, messages {shown.messages}, requests {shown.requests}")
            shown.close()


if __name__ == "__main__":
    main()
