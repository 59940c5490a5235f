"""Run a leak corpus, and compare what does not match with the list of what is known not to match yet.

    python scripts/check_corpus.py RUNNER LIST [arguments for the runner]

The list has one `case::test field` a line, and after `#` why. Exit status 0 only if exactly these do not match.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def known_mismatches(path: Path) -> set[str]:
    """Read the list: what stands before `#` on each line."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return {line for line in lines if line}


def mismatches(cases: list[dict[str, object]]) -> dict[str, str]:
    """Each mismatch that the runner stated, by its `case::test field`."""
    found: dict[str, str] = {}
    for case in cases:
        problems = case.get("problems", [])
        assert isinstance(problems, list)
        for problem in problems:
            found.setdefault(problem.partition(": want ")[0], problem)
    return found


def main(runner: Path, known_path: Path, *arguments: str) -> int:
    """Run the corpus. Returns the exit status."""
    known = known_mismatches(known_path)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        subprocess.run([sys.executable, str(runner), "--json", str(result), *arguments], check=False)
        if not result.exists():
            sys.stdout.write("corpus: the runner wrote no result\n")
            return 1
        cases = json.loads(result.read_text("utf-8"))["cases"]
    found = mismatches(cases)
    # A case that was skipped, or left out with -k, says nothing about its entries in the list.
    ran = {str(case["case"]) for case in cases if "skipped" not in case}
    new = [text for key, text in found.items() if key not in known]
    gone = sorted(key for key in known - found.keys() if key.partition(" ")[0].partition("::")[0] in ran)
    for text in new:
        sys.stdout.write(f"corpus: does not match: {text}\n")
    for key in gone:
        sys.stdout.write(f"corpus: matches now, so take it off {known_path.name}: {key}\n")
    sys.stdout.write(f"corpus: {len(ran)} cases ran, {len(found)} mismatches, of which {len(new)} are not known\n")
    return 1 if new or gone or not ran else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
