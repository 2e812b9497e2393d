"""`normscope check` as a whole: the list of findings, the survey under it, the command, its settings, SARIF."""

import io
import json
import math

import jsonschema
import pytest
import torch
from rich.console import Console
from torch import nn

import normscope as ns
from architectures import made
from normscope.check_model import findings_of
from normscope.errors import InputError
from normscope.report.sarif import as_sarif
from normscope.report.terminal import as_text, show
from normscope.results.finding_list import SEVERITIES, FindingList
from normscope.rules.rule import all_rules
from normscope.studies import survey as survey_module
from normscope.studies.survey import COMMANDS, survey
from test_rules import linear, norm, rows

HOSTILE = '<script>alert("x")</script>\u202e\x1b[2J' + "y" * 10_000


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The folder of a tiny model as it is initialised."""
    folder = tmp_path_factory.mktemp("models") / "fresh"
    torch.manual_seed(0)
    made("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """The folder of one with a matrix so large that float16 can't hold its outputs."""
    folder = tmp_path_factory.mktemp("models") / "a model"
    torch.manual_seed(0)
    model = made("gpt2")
    model.transformer.h[1].attn.c_attn.weight.data *= 1e7
    model.save_pretrained(folder)
    return folder


# ---- the list -------------------------------------------------------------------------------------------------------


def test_errors_come_first_then_warnings_then_notes():
    model = nn.Sequential(*linear(1e6), nn.Linear(4, 8), *norm([0.0, -1.0]))
    found = ns.check(model, inputs=rows(channels={3: 1e5}))
    order = [SEVERITIES.index(finding.severity) for finding in found.findings]
    assert order == sorted(order)
    assert found.findings[0].rule == "NS101"
    assert {"NS102", "NS201", "NS309"} <= {finding.rule for finding in found.findings}
    assert found.errors == found.count("error") == 1
    assert "1 error found" in found.failure()


def test_every_rule_is_found_clear_or_not_checked():
    found = ns.check(norm(), inputs=rows())
    told = {each.rule for part in (found.findings, found.clear, found.unchecked) for each in part}
    assert told == set(all_rules())
    assert all(each.evidence.endswith(".") for each in found.clear)


def test_without_a_text_the_rules_that_need_one_say_so():
    found = ns.check(norm(), select=["NS102", "NS204", "NS201"])
    assert [each.rule for each in found.clear] == ["NS201"]
    reasons = {each.rule: (each.reason, each.command) for each in found.unchecked}
    assert reasons["NS102"] == ("it needs a text to run the model on", "normscope.check(model, inputs=…)")
    assert reasons["NS204"] == ("it needs a text to run the model on", "normscope.keys(model, inputs=…)")


def test_severity_hides_findings_and_nothing_else():
    model, given = norm([0.0]), rows(channels={3: 1e5})
    everything, loud = (ns.check(model, inputs=given, severity=each) for each in ("note", "warning"))
    assert {finding.severity for finding in loud.findings} == {"warning"}
    assert set(loud.findings) == {finding for finding in everything.findings if finding.severity == "warning"}
    assert loud.clear == everything.clear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": ["NS999"]}, "'NS999' is no rule"),
        ({"ignore": ["N"]}, "'N' is no rule"),
        ({"severity": "bad"}, "severity must be one of error, warning, note, got 'bad'"),
        ({"seconds": -1.0}, "seconds must be a number, 0 or more"),
    ],
)
def test_what_is_no_rule_or_severity_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        ns.check(norm(), **options)


def test_the_list_fits_its_schema_and_a_file_gives_it_back(tmp_path):
    found = ns.check(norm([0.0]), inputs=rows(channels={3: 1e5}))
    payload = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    jsonschema.validate(payload, FindingList.json_schema())
    found.save(tmp_path / "findings.safetensors")
    assert ns.load(tmp_path / "findings.safetensors") == found
    assert repr(found).startswith("FindingList(Sequential: 1 warning, ")


def test_on_a_terminal_findings_are_blocks_of_text_and_with_all_columns_tables():
    found = ns.check(norm([0.0]), inputs=rows(channels={3: 1e5}))
    text = as_text(found)
    assert text.startswith("1 warning, ")
    assert "▲ warning · seen on the text · NS102 massive-activation\n  Channel 3 of the stream reaches " in text
    assert "Do: Keep norms in float32" in " ".join(text.split())
    assert "Checked, and nothing found:" in text
    assert not any(line.endswith(" ") for line in text.splitlines() if line.startswith("  Do"))
    assert "what to do" in as_text(found, everything=True)
    narrow = Console(width=40, file=io.StringIO())
    show(found, narrow)
    assert max(map(len, narrow.file.getvalue().splitlines())) <= 40
    assert as_text(FindingList("gpt", ())).startswith("No finding on gpt.")


def test_hostile_names_can_do_nothing():
    inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    model = nn.Sequential()
    model.add_module(HOSTILE, inner)
    model.add_module("last", nn.LayerNorm(8))
    with torch.no_grad():
        inner[0].weight[0], inner[1].weight[:] = 0.0, inner[1].weight * 1e7
    found = ns.check(model, inputs=rows(channels={3: 1e5}))
    assert found.errors
    text = as_text(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text) < 20_000
    assert "<script>" not in found._repr_html_()
    assert json.loads(json.dumps(as_sarif(found)))["runs"][0]["results"]


# ---- the survey -----------------------------------------------------------------------------------------------------


def test_a_survey_gives_what_each_study_gives_alone():
    model = torch.nn.Sequential(*norm([1.0, -2.0, 0.5]), nn.Linear(4, 8), nn.ReLU(), *norm())
    found = survey(model, inputs=[rows(), rows(scale=2.0)])
    again = [rows(), rows(scale=2.0)]
    assert found.results["inspection"] == ns.inspect(model, inputs=again)
    assert found.results["layer_ranges"] == ns.ranges(model, inputs=again)
    assert found.results["folding"].norms == ns.fold(model, inputs=again).norms
    assert list(found.seconds) == list(COMMANDS)
    assert [(each.kind, each.command) for each in found.missing] == [("key_selection", None)]  # it has no attention


def test_batches_that_come_only_once_serve_all_parts():
    found = survey(norm(), inputs=(rows(scale=float(many)) for many in (1, 2)), parts=["inspection", "layer_ranges"])
    assert found.results["inspection"].norms[0].landing.inputs == 80
    assert found.results["layer_ranges"].layers[0].observed is not None


def test_ranges_and_spikes_share_one_walk_over_the_tensors(monkeypatch):
    walks = []

    class Counted(survey_module.RangeSearch):
        def rows(self, *given):
            walks.append(1)
            return super().rows(*given)

    monkeypatch.setattr(survey_module, "RangeSearch", Counted)
    found = survey(norm(), inputs=rows(), parts=["layer_ranges", "spike_list"])
    assert set(found.results) == {"layer_ranges", "spike_list"}
    assert len(walks) == 1


def test_without_time_everything_is_missing_with_the_command_that_computes_it():
    found = survey(ns.demo_model(), text="To be, or not to be.", seconds=0)
    assert found.results == {}
    assert {each.kind: each.command for each in found.missing} == {
        kind: f"normscope {command} --text FILE" for kind, command in COMMANDS.items()
    }
    assert {each.reason for each in found.missing} == {"the 0 seconds were over"}
    assert len(findings_of(found).unchecked) == len(all_rules())


def test_commands_name_the_model_and_the_text_where_they_are_known(tmp_path):
    (tmp_path / "my text.txt").write_text("To be, or not to be.")
    option = f"--text '{tmp_path / 'my text.txt'}'"
    found = survey(ns.demo_model(), text=tmp_path / "my text.txt", seconds=0)
    assert {each.command for each in found.missing} == {f"normscope {name} {option}" for name in COMMANDS.values()}
    assert (
        found.with_names("normscope fold MODEL -o FOLDER") == "normscope fold -o FOLDER"
    )  # the demo model has no name
    assert found.with_names("normscope keys MODEL --text FILE") == f"normscope keys {option}"
    by_tensors = survey(norm(), inputs=rows(), seconds=0)
    assert by_tensors.with_names("normscope fold MODEL") == "normscope fold MODEL"


def test_a_budget_leaves_out_tight_bounds_and_changes_no_verdict(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    whole = survey(model, inputs=torch.ones(1, 6), parts=["layer_ranges"]).results["layer_ranges"]
    monkeypatch.setattr(survey_module, "MUCH_TIME", math.inf)
    quick = survey(model, inputs=torch.ones(1, 6), parts=["layer_ranges"], seconds=600).results["layer_ranges"]
    assert len(whole.certificates) > len(quick.certificates)
    assert [row.grade for row in quick.layers] == ["exact", "quadratic"]
    assert quick.limit == whole.limit
    for loose, tight in zip(quick.layers, whole.layers, strict=True):
        assert loose.low <= tight.low <= tight.high <= loose.high
    monkeypatch.setattr(survey_module, "MUCH_TIME", 0)
    again = survey(model, inputs=torch.ones(1, 6), parts=["layer_ranges"], seconds=600).results["layer_ranges"]
    assert again == whole


def test_the_head_says_how_many_checks_did_not_run():
    found = ns.check(norm(), select=["NS102", "NS204", "NS201"])
    assert as_text(found).splitlines()[0] == "No finding on Sequential. 2 of 3 checks did not run."
    assert "did not run" not in as_text(ns.check(norm(), select=["NS201"]))


def test_a_part_ends_when_its_time_is_over(monkeypatch):
    clock = iter([0.0, *([0.1] * 6), *([9.0] * 100)])
    monkeypatch.setattr(survey_module.time, "monotonic", lambda: next(clock))
    found = survey(norm(), inputs=[rows()] * 9, seconds=5.0, parts=["inspection"])
    assert [each.reason for each in found.missing] == ["the 5 seconds were over"]


def test_a_part_that_fails_does_not_end_the_survey():
    found = survey(nn.Sequential(nn.LayerNorm(4)), parts=["inspection", "token_verdicts"], inputs=rows(4))
    assert list(found.results) == ["inspection"]
    assert "unembedding" in found.missing[0].reason
    with pytest.raises(InputError, match=r"parts must be among inspection, .*, got 'inspect'"):
        survey(norm(), parts=["inspect"])


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_exit_code_is_1_for_an_error_0_without_and_2_for_bad_usage(run_here, overflowing, tmp_path):
    found = run_here("check", overflowing, "--select", "NS101", "--sarif", tmp_path / "f.sarif")
    assert found.returncode == 1
    assert found.stdout.startswith("1 error")
    assert "normscope: 1 error found\n" in found.stderr
    assert json.loads((tmp_path / "f.sarif").read_text())["runs"][0]["results"][0]["level"] == "error"
    assert run_here("check", "--select", "NS201").returncode == 0
    (tmp_path / "empty.txt").write_text(" ")
    for wrong in (
        ["--select", "NS7"],
        ["--severity", "bad"],
        ["--text", "no such file"],
        ["no such model"],
        ["--text", tmp_path / "empty.txt"],
    ):
        assert run_here("check", *wrong).returncode == 2
    refused = run_here("check", "--select", "NS201", "--sarif", tmp_path / "f.sarif")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "exists" in refused.stderr


def test_json_on_the_command_line(run_here, fresh):
    done = run_here("check", fresh, "--select", "NS2", "--ignore", "NS203", "--json")
    payload = json.loads(done.stdout)
    jsonschema.validate(payload, FindingList.json_schema())
    assert [each["rule"] for each in payload["clear"]] == ["NS201", "NS202"]
    assert payload["unchecked"] == [
        {
            "rule": "NS204",
            "name": "unselectable-keys",
            "reason": "it needs a text to run the model on",
            "command": f"normscope keys {fresh} --text FILE",
        }
    ]


def test_settings_come_from_pyproject_and_options_take_their_place(run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.normscope.check]\nselect = ["NS201", "NS305"]\nignore = ["NS305"]\n'
    )
    told = json.loads(run_here("check", "--json").stdout)
    assert [each["rule"] for each in told["clear"]] == ["NS201"]
    told = json.loads(run_here("check", "--json", "--select", "NS308").stdout)
    assert [each["rule"] for each in told["clear"]] == ["NS308"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[tool.normscope.check]\nselct = []", "'selct' of [tool.normscope.check] is no setting"),
        ("[tool.normscope.check]\nselect = 'NS101'", "must be a list of rules, got 'NS101'"),
        ("[tool.normscope.check]\nignore = [1]", "must be a list of rules"),
        ("[tool.normscope.check]\nseconds = true", "must be a number, got True"),
        ("[tool.normscope.check]\nseverity = 'loud'", "severity must be one of"),
        ("[tool.normscope]\ncheck = 3", "check must be a table, got 3"),
        ("[tool", "can't be read"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_line(run_here, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(content)
    done = run_here("check", "--select", "NS201")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_rules_explain_themselves(run_here):
    done = run_here("check", "--explain", "ns102")
    assert done.returncode == 0
    assert done.stdout.startswith("NS102 massive-activation\n\nOne channel of the stream is thousands of times larger")
    assert "above 1,000." in done.stdout
    assert run_here("check", "--explain", "massive-activation").stdout == done.stdout
    assert all(number in run_here("check", "--explain", "all").stdout for number in all_rules())
    assert run_here("check", "--explain", "NS9").returncode == 2


# ---- SARIF ----------------------------------------------------------------------------------------------------------

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
# What SARIF 2.1.0 demands of the parts that are written here.
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "semanticVersion": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "shortDescription": TEXT,
                                                "fullDescription": TEXT,
                                                "help": TEXT,
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "properties": {
                                "executionSuccessful": {"type": "boolean"},
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["message"],
                                        "properties": {"message": TEXT, "level": {"enum": ["none", "note", "warning"]}},
                                    },
                                },
                            },
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "properties": {
                                "message": TEXT,
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "locations": {"type": "array", "minItems": 1},
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_sarif_names_rules_by_their_place_and_models_by_a_uri():
    model = norm([0.0])
    found = ns.check(model, inputs=rows(channels={3: 1e5}))
    from dataclasses import replace

    sarif = json.loads(json.dumps(as_sarif(replace(found, path="my models/ü#1")), allow_nan=False))
    jsonschema.validate(sarif, SARIF)
    (run,) = sarif["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(all_rules())
    assert len(run["results"]) == len(found.findings)
    for told, finding in zip(run["results"], found.findings, strict=True):
        assert rules[told["ruleIndex"]]["id"] == told["ruleId"] == finding.rule
        assert told["level"] == finding.severity
        assert finding.title in told["message"]["text"]
        place = told["locations"][0]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "my%20models/%C3%BC%231"
        assert [each["fullyQualifiedName"] for each in place["logicalLocations"]] == list(finding.sites)
    told = run["invocations"][0]["toolExecutionNotifications"]
    assert [each["associatedRule"]["id"] for each in told] == [each.rule for each in found.unchecked]
