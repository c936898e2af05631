#!/usr/bin/env bash
# Runs the tests in two parts and reports one total: `plain` tests need no Spark, `engine` tests start it, start a
# server or kill processes. PARTS names one part or both (both unless set). Extra arguments go to pytest.
# There is a worker for each core that the operating system counts; TEST_WORKERS sets another number.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

REPORTS="$(mktemp -d)"
MEMORY=""
trap 'rm -rf "$REPORTS" ${MEMORY:+"$MEMORY"}' EXIT
WORKERS="${TEST_WORKERS:-logical}"
PARTS="${PARTS:-plain engine}"
ROOM_NEEDED=8000000 # kB
status=0

# Tests create and delete files all the time; where there is room in memory, they need not wait for a disk.
room="$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)"
memory="$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null)"
if [ "${room:-0}" -ge "$ROOM_NEEDED" ] && [ "${memory:-0}" -ge "$((2 * ROOM_NEEDED))" ] && MEMORY="$(mktemp -d /dev/shm/cairn-tests.XXXXXX 2>/dev/null)"; then
    chmod 711 "$MEMORY" # PostgreSQL runs as another user
    export TMPDIR="$MEMORY"
fi

# Exit code 5 of pytest means that no test was selected, which one part may well be.
part() {
    local name="$1" code=0
    shift
    printf '\n== tests: %s\n' "$name"
    .venv/bin/python -m pytest --junit-xml="$REPORTS/$name.xml" -o junit_suite_name="$name" -n "$WORKERS" "$@" || code=$?
    if [ "$code" -ne 0 ] && [ "$code" -ne 5 ]; then status=1; fi
}

case " $PARTS " in *" plain "*)
    part plain -m 'not spark and not kill and not server' --dist worksteal "$@"
    ;;
esac
# Tests that share a server or a fixture go to one worker (see tests/conftest.py), in the order that is given there.
case " $PARTS " in *" engine "*)
    if options="$(.venv/bin/python -m tests.support.spark_archive)"; then
        export SPARK_SUBMIT_OPTS="$options"
    else
        echo "tests: there is no archive of Spark's classes, so every JVM takes longer to start"
    fi
    part engine -m 'spark or kill or server' --dist loadgroup --no-loadscope-reorder "$@"
    ;;
esac

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
