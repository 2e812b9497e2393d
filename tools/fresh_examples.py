"""Run all property tests with new examples, one seed after the other, until one fails or all runs are done.

    python tools/fresh_examples.py --runs 20 --seed 1

Prints the examples of each run and their sum; ends with 1 at the first failure, with the command that repeats it.
"""

import argparse
import os
import re
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="number of runs, each with the next seed (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run (default: 1)")
    chosen = parser.parse_args()
    total = 0
    for seed in range(chosen.seed, chosen.seed + chosen.runs):
        command = [sys.executable, "-m", "pytest", "tests", "-m", "property", "-n", "auto", "--dist", "loadfile"]
        command += ["--hypothesis-profile", "fresh", "--hypothesis-seed", str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        counted = re.search(r"([\d,]+) examples in ([\d,]+) property tests", run.stdout)
        examples = int(counted[1].replace(",", "")) if counted else 0
        if run.returncode or not examples:
            print(run.stdout[-8000:], run.stderr[-2000:], sep="\n")
            print(f"seed {seed} failed; to repeat it: {' '.join(command[1:])}")
            return 1
        total += examples
        print(f"seed {seed}: {counted[0] if counted else ''}, none failed", flush=True)
    print(f"{total:,} examples in {chosen.runs} runs, none failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
