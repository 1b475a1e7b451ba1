"""Compares or records golden runs.

python -m tests.golden [NAME ...]   compares with tests/golden/runs.json
python -m tests.golden --record     writes it anew, after a change that means to alter numbers
"""

import json
import sys

from tests.golden import FILE, RUNS, machine, recorded, run


def main() -> None:
    """Records all runs, or prints of each named one whether it is equal to the record."""
    if "--record" in sys.argv:
        lines = [f"{json.dumps(name)}: {json.dumps(run(name))}" for name in RUNS]
        runs = ",\n".join(lines)
        FILE.write_text(f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{runs}\n}}}}\n')
        return
    old = recorded()["runs"]
    is_equal = {}
    for name in sys.argv[1:] or RUNS:
        is_equal[name] = run(name) == old[name]
        print(f"{name}: {'equal' if is_equal[name] else 'DIFFERS'}", flush=True)
    sys.exit(not all(is_equal.values()))


if __name__ == "__main__":
    main()
