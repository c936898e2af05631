#!/usr/bin/env bash
# Random runs for as long as one likes: each kind that is named as an argument takes MINUTES. Seeds are printed; SEED
# repeats one run of a kind instead. Ends with an error as soon as something is found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MINUTES="${MINUTES:-10}"
SEED="${SEED:-}"
TESTS=(.venv/bin/python -m pytest -q -p no:cacheprovider -n "${TEST_WORKERS:-logical}")

# Calls a function with one seed after the other until the time is up.
again_and_again() {
    local run="$1" end=$((SECONDS + MINUTES * 60)) seed
    while true; do
        seed="${SEED:-$((RANDOM * 32768 + RANDOM))}"
        printf '\n== soak: %s, SEED=%s\n' "$run" "$seed"
        "$run" "$seed"
        if [ -n "$SEED" ] || [ "$SECONDS" -ge "$end" ]; then return; fi
    done
}

# Histories of jobs without Spark, with failures of every kind.
simulation() {
    if [ -n "$SEED" ]; then
        .venv/bin/python -m cairn.testing.simulation --seed "$SEED" --shrink
    else
        .venv/bin/python -m cairn.testing.simulation --minutes "$MINUTES" --shrink
    fi
}

# Broken versions of the protocol, each of which the simulation must find with new seeds.
mutations() {
    SOAK=1 "${TESTS[@]}" tests/simulation -k broken_version
}

# Random values, calls and requests.
fuzz() {
    FUZZ_SEED="$1" FUZZ_EXAMPLES=50 "${TESTS[@]}" -m 'hypothesis or fuzz' --hypothesis-seed="$1" tests/unit tests/property
}

# Real processes, killed at random.
kills() {
    KILL_SEED="$1" KILL_ROUNDS=5 "${TESTS[@]}" tests/kill -k 'again_and_again or at_random or all_kinds'
}

for what in "$@"; do
    case "$what" in
        simulation | mutations) "$what" ;;
        fuzz | kills) again_and_again "$what" ;;
        *)
            echo "soak: there is no $what; choose among simulation, mutations, fuzz and kills" >&2
            exit 2
            ;;
    esac
done
