#!/usr/bin/env bash
# Runs the tests in two parts and reports one total. Tests that start Spark or a server, or kill processes, are handed
# out by file, because a file shares its session and its servers; the rest test by test. Files with few tests are not put
# last, as they would be by default: those that kill processes take longest. Extra arguments go to both parts.
# There is a worker for each core that the operating system counts; TEST_WORKERS sets another number.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

REPORTS="$(mktemp -d)"
trap 'rm -rf "$REPORTS"' EXIT
WORKERS="${TEST_WORKERS:-logical}"
status=0

# Exit code 5 of pytest means that no test was selected, which one part may well be.
part() {
    local name="$1" code=0
    shift
    printf '\n== tests: %s\n' "$name"
    .venv/bin/python -m pytest --junit-xml="$REPORTS/$name.xml" -o junit_suite_name="$name" "$@" || code=$?
    if [ "$code" -ne 0 ] && [ "$code" -ne 5 ]; then status=1; fi
}

part plain -m 'not spark and not kill and not server' -n "$WORKERS" "$@"
part engine -m 'spark or kill or server' -n "$WORKERS" --dist loadfile --no-loadscope-reorder "$@"

.venv/bin/python - "$REPORTS" <<'PY' || status=1
import pathlib
import sys
import xml.etree.ElementTree as ET

total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
seconds = 0.0
for report in pathlib.Path(sys.argv[1]).glob("*.xml"):
    for suite in ET.parse(report).getroot().iter("testsuite"):
        seconds += float(suite.get("time", 0))
        for name in total:
            total[name] += int(suite.get(name, 0))
bad = total["failures"] + total["errors"]
passed = total["tests"] - bad - total["skipped"]
print(f"\n== total: {passed} passed, {bad} failed, {total['skipped']} skipped in {seconds:.0f} s")
sys.exit(1 if bad or not total["tests"] else 0)
PY
exit "$status"
