"""Findings in SARIF 2.1.0, the format in which code hosts and editors take the findings of linters."""

from typing import Any
from urllib.parse import quote

import normscope
from normscope.results.finding_list import Finding, FindingList
from normscope.rules.rule import Rule, all_rules

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(result: FindingList) -> dict[str, Any]:
    """One run: the rules, a result for each finding, and a notification for each rule that was not checked."""
    rules = all_rules()
    order = list(rules)
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "normscope",
                        "semanticVersion": normscope.__version__,
                        "rules": [_described(rule) for rule in rules.values()],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": f"{each.rule} {each.name} was not checked: {each.reason}"},
                                "associatedRule": {"id": each.rule, "index": order.index(each.rule)},
                            }
                            for each in result.unchecked
                        ],
                    }
                ],
                "results": [_result(finding, result, order.index(finding.rule)) for finding in result.findings],
            }
        ],
    }


def _described(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.number,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.page},
        "help": {"text": rule.page},
    }


def _result(finding: Finding, result: FindingList, index: int) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": site, "kind": "module"} for site in finding.sites]
    location: dict[str, Any] = {"logicalLocations": logical} if logical else {}
    if result.path is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": quote(result.path.replace("\\", "/"))}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": " ".join((finding.title, finding.evidence, finding.why, f"Do: {finding.do}"))},
        **({"locations": [location]} if location else {}),
        "properties": {"sure": finding.sure, "norms": list(finding.norms)},
    }
