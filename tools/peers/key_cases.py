"""Keys and tokens: normscope, the published procedure with Gurobi, and one linear program per key by HiGHS.

Runs in normscope's own environment, with gurobipy and the licence that comes with it. One JSON object on the last line.
"""

import json
import time
from fractions import Fraction
from importlib.metadata import version

import numpy as np

import normscope as ns
from normscope_lab.bench.key_sets import KINDS
from normscope_lab.bench.linear_programs import PREFERS, preference
from normscope_lab.bench.published_procedure import PublishedProcedure

SEED, PROGRAMS = 7, 24  # of keys and of the sample; linear programs by HiGHS in each row
CASES = (  # kind, keys, channels, factor on the keys, deviation of a bias
    ("Gaussian", 600, 8, 1.0, 0.0),
    ("anisotropic", 600, 8, 1.0, 0.0),
    ("anisotropic", 600, 8, 1e-4, 0.0),
    ("anisotropic", 600, 8, 1e-7, 0.0),
    ("heavy-tailed", 600, 16, 1.0, 0.0),
    ("5% interior", 600, 32, 1.0, 0.0),
    ("Gaussian", 600, 8, 1.0, 1000.0),
    ("Gaussian", 600, 8, 1000.0, 1000.0),  # the same question, with queries a thousand times shorter
    ("anisotropic", 2500, 8, 1.0, 0.0),
)


def main():
    first = np.random.default_rng(SEED).standard_normal((8, 2))
    ns.selectable(first), preference(first, 0), PublishedProcedure(first).program_finds(0)  # compiled, licence read
    rows = [judged(*keys) for keys in sets()]
    versions = {package: version(package) for package in ("normscope", "gurobipy", "scipy")}
    print(json.dumps({"seed": SEED, "programs": PROGRAMS, "versions": versions, "rows": rows}))


def sets():
    """Name, keys and bias of every set."""
    yield from (set_of(*case) for case in CASES)
    yield set_of_tokens()


def set_of(kind, count, channels, factor, deviation):
    rng = np.random.default_rng(SEED)
    keys = KINDS[kind](count, channels, rng) * np.float32(factor)
    bias = (deviation * rng.standard_normal(count)).astype(np.float32) if deviation else None
    words = [kind] + ([f"times {factor:,g}"] if factor != 1 else [])
    return ", ".join(words) + (f", bias of deviation {deviation:,.0f}" if deviation else ""), keys, bias


def set_of_tokens():
    """The rows of the demo model's unembedding: which tokens some hidden vector scores highest."""
    from safetensors.numpy import load_file

    tensors = load_file(next(ns.demo_model().glob("*.safetensors")))
    table = tensors.get("lm_head.weight", tensors.get("transformer.wte.weight"))
    return "tokens of the demo model", np.asarray(table, np.float32), None


def write_sets(file):
    """All sets as keys0, bias0, keys1 …, for a peer in another environment; their names."""
    arrays, names = {}, []
    for number, (name, keys, bias) in enumerate(sets()):
        names.append(name)
        arrays |= {f"keys{number}": keys} | ({} if bias is None else {f"bias{number}": bias})
    np.savez(file, **arrays)
    return names


def compared(names, file, rows):
    """Verdicts of a peer (True: selected, None: it failed) beside those of normscope, where that calls none a near tie.

    `shown`: of the keys judged differently, those with a query of normscope that holds in rational numbers. `refused`:
    keys that the peer calls never selected after its solver ended with an error.
    """
    arrays, found = np.load(file), []
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        keys, bias = arrays[f"keys{number}"], arrays.get(f"bias{number}")
        result, verdicts = ns.selectable(keys, bias=bias), row.pop("selected")
        asked = [key for key in np.flatnonzero(~result.near_ties) if verdicts[key] is not None]
        differs = [key for key in asked if verdicts[key] != result.mask[key]]
        shown = sum(wins_exactly(keys, bias, result, key) for key in differs)
        about = {"keys": name, "count": len(keys), "channels": keys.shape[1], "never": int((~result.mask).sum())}
        counts = {"failed": verdicts.count(None), "compared": len(asked), "differ": len(differs), "shown": shown}
        found.append(about | counts | {"called_never": verdicts.count(False)} | row)
    return found


def judged(name, keys, bias):
    """One set by all three; verdicts are compared where normscope calls none a near tie."""
    begin = time.process_time()
    result = ns.selectable(keys, bias=bias)
    holds = result.holds
    row = {
        "keys": name,
        "count": len(keys),
        "channels": keys.shape[1],
        "never": int((~result.mask & ~result.open).sum()),
        "near_ties": int(result.near_ties.sum()),
        "open": int(result.open.sum()),
        "holds": holds,
        "cpu_seconds": time.process_time() - begin,
    }
    compared = np.flatnonzero(~result.near_ties)
    return row | {"published": published(keys, bias, result, compared), "highs": highs(keys, bias, result, compared)}


def published(keys, bias, result, compared):
    """The published procedure on every key."""
    begin = time.process_time()
    procedure, differs, failed, words, programs = PublishedProcedure(keys, bias), [], 0, None, 0
    for key in compared:
        if procedure.reflections_find(key):
            found = True
        else:
            programs += 1
            try:
                found = procedure.program_finds(key)
            except Exception as error:  # of the solver or of its own check of the query: counted, and kept in words
                failed, words = failed + 1, f"{type(error).__name__}: {error}"
                continue
        if found != result.mask[key]:
            differs.append(key)
    return {
        "compared": len(compared) - failed,
        "programs": programs,
        "failed": failed,
        "words": words,
        "missed": len(differs),
        "missed_shown": sum(wins_exactly(keys, bias, result, key) for key in differs),
        "cpu_seconds": time.process_time() - begin,
    }


def highs(keys, bias, result, compared):
    """One linear program for each of a few keys, drawn at random."""
    drawn = np.random.default_rng(SEED).permutation(compared)[:PROGRAMS]
    begin = time.process_time()
    found = {int(key): preference(keys, int(key), bias) for key in drawn}
    seconds = time.process_time() - begin
    answered = {key: value for key, value in found.items() if value is not None}
    differs = [key for key, value in answered.items() if (value > PREFERS) != result.mask[key]]
    return {
        "programs": len(drawn),
        "failed": len(drawn) - len(answered),
        "missed": len(differs),
        "missed_shown": sum(wins_exactly(keys, bias, result, key) for key in differs),
        "cpu_seconds": seconds,
    }


def wins_exactly(keys, bias, result, key):
    """Whether normscope's query scores the key above all others, in rational numbers."""
    if not result.mask[key]:
        return False
    query = [Fraction(float(each)) for each in result.certificates[int(key)].query]
    heights = np.zeros(len(keys)) if bias is None else bias
    scores = [
        sum(Fraction(float(k)) * q for k, q in zip(row, query, strict=True)) + Fraction(float(height))
        for row, height in zip(keys, heights, strict=True)
    ]
    return all(scores[key] > score for other, score in enumerate(scores) if other != key)


if __name__ == "__main__":
    main()
