"""The report of a model as a file: all studies in a time budget, the findings of all rules, and the page."""

import shlex
from pathlib import Path

import normscope
from normscope.check_model import findings_of
from normscope.files import PAGES, require_writable, write_atomically
from normscope.models.batches import Inputs
from normscope.models.subject import Model, Text
from normscope.progress import Progress, silent
from normscope.report.page import Absent, render
from normscope.results.finding_list import FindingList
from normscope.studies.survey import Survey, survey


def write_report(
    model: Model,
    out: str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    seconds: float | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> FindingList:
    """Write everything that normscope finds out about a model to one HTML file that needs no network.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, a file of weights, or a torch module.
    out
        The file, ending in .html.
    text, inputs
        Text or inputs to run the model on. Without them, the page shows what weights tell.
    seconds
        Stop after this many seconds; what could not be computed is listed with its command. None: no limit, but
        verdicts on tokens stop after a minute.
    device, dtype
        Device and floating-point type to run the model in.
    force
        Whether a file that exists is replaced.
    progress
        Called with the items of each study and a description; see `normscope.progress`.

    Returns
    -------
    FindingList
        The findings at the top of the page.
    """
    target = Path(out)
    require_writable(target, force=force, endings=PAGES)
    found = survey(model, text=text, inputs=inputs, seconds=seconds, device=device, dtype=dtype, progress=progress)
    findings = findings_of(found)
    write_atomically(page_of(found, findings).encode(), target)
    return findings


def page_of(found: Survey, findings: FindingList) -> str:
    """The page of a survey."""
    return render(
        found.results.values(),
        model=found.model,
        findings=findings,
        missing=[Absent(each.kind, each.reason, each.command) for each in found.missing],
        made=_made(found),
        with_names=found.with_names,
    )


def _made(found: Survey) -> list[str]:
    """How the page was made, in sentences."""
    where = "" if found.path is None or found.model != found.path else f" {shlex.quote(found.path)}"
    given = "" if found.run_option is None else f" {found.run_option}"
    run = "It was not run on a text." if found.text is None else f"It was run on a text of {found.text}."
    took = ", ".join(f"{kind.replace('_', ' ')} {seconds:,.1f} s" for kind, seconds in found.seconds.items())
    return [
        f"Made by normscope {normscope.__version__}: normscope report{where}{given} -o report.html",
        f"{run} Each study ran once on the same model: {took}.",
        "A verdict that is called proved has a certificate or follows from the weights; `normscope keys`, `vocab` and "
        "`ranges` save certificates with -o, and `normscope verify` checks them without solving anything.",
    ]
