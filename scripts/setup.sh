#!/usr/bin/env bash
# Makes the project ready to use: a `.venv` in the project root with cairn installed in editable form, Spark, all
# optional backends and the development tools at the versions of uv.lock, and a Java runtime for Spark.
# Safe to repeat; when nothing changed since the last run it only looks and returns.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"

VENV="$ROOT/.venv"
STAMP="$VENV/.cairn-setup"
PRIVATE_UV="$ROOT/.uv" # only filled when the machine has no uv of its own
JAVA_NEEDED=17

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    printf 'setup: error: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

# ---------------------------------------------------------------- system packages

# Sets AS_ROOT to the prefix that runs a command as root without a question, or returns 1.
can_be_root() {
    if [ "$(id -u)" = 0 ]; then
        AS_ROOT=()
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        AS_ROOT=(sudo -n)
    else
        return 1
    fi
}

can_apt() { command -v apt-get >/dev/null 2>&1 && can_be_root; }

# Installs the first of the given packages that this release has.
apt_install_one_of() {
    say "refreshing the package lists (apt-get update)"
    "${AS_ROOT[@]}" apt-get update -qq >&2 || say "apt-get update failed; trying with the lists at hand"
    local package
    for package in "$@"; do
        say "installing $package"
        if "${AS_ROOT[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >&2; then
            return 0
        fi
    done
    return 1
}

# ---------------------------------------------------------------- Java

java_command() {
    if [ -n "${JAVA_HOME:-}" ]; then
        printf '%s\n' "$JAVA_HOME/bin/java"
    else
        command -v java || true
    fi
}

# Prints the major version of the Java that Spark will use, or nothing.
java_major() {
    local java
    java="$(java_command)"
    [ -n "$java" ] && [ -x "$java" ] || return 0
    # 17.0.9 -> 17, 1.8.0_392 -> 8
    "$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

HOW_TO_INSTALL_JAVA=(
    "Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless   (or default-jre-headless)"
    "Fedora, RHEL:    sudo dnf install java-17-openjdk-headless      (or a newer one)"
    "macOS:           brew install openjdk@17, then set JAVA_HOME"
    "Then run \`make setup\` again."
)

ensure_java() {
    local major
    if [ -n "${JAVA_HOME:-}" ]; then
        major="$(java_major)"
        [ -n "$major" ] || fail "JAVA_HOME is $JAVA_HOME, but there is no working bin/java in it." \
            "Unset JAVA_HOME or point it to a Java $JAVA_NEEDED or newer."
        [ "$major" -ge "$JAVA_NEEDED" ] || fail "JAVA_HOME is $JAVA_HOME, which is Java $major; Spark needs Java $JAVA_NEEDED or newer." \
            "Unset JAVA_HOME or point it to a newer Java."
        return 0
    fi
    major="$(java_major)"
    if [ -n "$major" ] && [ "$major" -ge "$JAVA_NEEDED" ]; then return 0; fi
    if [ -n "$major" ]; then
        say "found Java $major, Spark needs Java $JAVA_NEEDED or newer"
    else
        say "no Java found, Spark needs Java $JAVA_NEEDED or newer"
    fi
    can_apt || fail "Java $JAVA_NEEDED or newer is missing and cannot be installed from here (no root rights or no apt-get)." "${HOW_TO_INSTALL_JAVA[@]}"
    apt_install_one_of "openjdk-$JAVA_NEEDED-jre-headless" default-jre-headless ||
        fail "installing Java with apt-get did not work; its messages are above." "${HOW_TO_INSTALL_JAVA[@]}"
    hash -r
    major="$(java_major)"
    if [ -z "$major" ] || [ "$major" -lt "$JAVA_NEEDED" ]; then
        fail "Java was installed, but \`java -version\` still answers '${major:-nothing}'." \
            "Choose the new one with \`update-alternatives --config java\` or set JAVA_HOME."
    fi
}

# ---------------------------------------------------------------- uv

find_uv() {
    local candidate
    for candidate in "$(command -v uv || true)" "$PRIVATE_UV/bin/uv" "$PRIVATE_UV/pip/bin/uv" "$HOME/.local/bin/uv"; do
        if [ -n "$candidate" ] && [ -x "$candidate" ] && "$candidate" --version >/dev/null 2>&1; then
            UV="$candidate"
            return 0
        fi
    done
    return 1
}

uv_by_pip() {
    local python="$1"
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$PRIVATE_UV/pip" uv
}

uv_by_venv() {
    local python="$1"
    "$python" -m venv "$PRIVATE_UV" && "$PRIVATE_UV/bin/python" -m pip install --quiet --disable-pip-version-check uv
}

ensure_uv() {
    find_uv && return 0
    local hints=(
        "Install it in one of these ways, then run \`make setup\` again:"
        "  python3 -m pip install --user uv      (or: pipx install uv)"
        "  curl -LsSf https://astral.sh/uv/install.sh | sh"
    )
    local python
    python="$(command -v python3 || true)"
    if [ -z "$python" ]; then
        say "no python3 found"
        if can_apt && apt_install_one_of python3-venv; then python="$(command -v python3)"; else
            fail "uv is missing, and there is no python3 to install it with." "${hints[@]}"
        fi
    fi
    say "no uv found; installing a private one in .uv"
    mkdir -p "$PRIVATE_UV"
    if "$python" -m pip --version >/dev/null 2>&1 && uv_by_pip "$python" && find_uv; then return 0; fi
    if uv_by_venv "$python" 2>/dev/null && find_uv; then return 0; fi
    # Debian ships python3 without pip and without a complete venv module.
    if can_apt && apt_install_one_of python3-venv && uv_by_venv "$python" && find_uv; then return 0; fi
    rm -rf "$PRIVATE_UV"
    fail "uv is missing, and $python has neither pip nor venv to install it with." "${hints[@]}"
}

# ---------------------------------------------------------------- the environment

# The interpreter of .venv: $CAIRN_PYTHON, else the one of the operating system if it is new enough, else uv's choice.
# Distributions build theirs with profile-guided optimisation, home-made ones seldom are; user functions run a fifth
# faster in the former.
choose_python() {
    if [ -n "${CAIRN_PYTHON:-}" ]; then
        PYTHON="$CAIRN_PYTHON"
    elif /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        PYTHON=/usr/bin/python3
    else
        PYTHON='>=3.11'
    fi
}

fingerprint() {
    {
        printf '%s\n' "$ROOT" "$PYTHON"
        cat pyproject.toml uv.lock scripts/setup.sh
    } | { sha256sum 2>/dev/null || shasum -a 256; } | cut -d' ' -f1
}

# Installs the locked versions through whatever package source is configured for uv or pip on this machine.
install_through_configured_source() {
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"; fi
    if [ -n "${PIP_FIND_LINKS:-}" ]; then export UV_FIND_LINKS="${UV_FIND_LINKS:-$PIP_FIND_LINKS}"; fi
    local requirements="$VENV/.cairn-requirements.txt"
    [ -x "$VENV/bin/python" ] || "$UV" venv --quiet --python "$PYTHON" "$VENV"
    "$UV" export --quiet --frozen --all-extras --no-hashes --no-emit-project --output-file "$requirements" >/dev/null &&
        "$UV" pip install --quiet --python "$VENV/bin/python" --requirements "$requirements" &&
        "$UV" pip install --quiet --python "$VENV/bin/python" --no-deps --editable .
}

build_environment() {
    # An environment activated by the caller must not become the target.
    unset VIRTUAL_ENV
    export UV_PROJECT_ENVIRONMENT="$VENV"
    say "installing the packages of uv.lock into .venv"
    if ! "$UV" sync --quiet --locked --all-extras --python "$PYTHON"; then
        say "that did not work; trying the package source configured on this machine"
        install_through_configured_source ||
            fail "the packages could not be installed; the messages above say why." \
                "Most often the package index cannot be reached: check the network, a proxy, or UV_DEFAULT_INDEX."
    fi
    "$VENV/bin/python" -c 'import cairn.cli, pyspark, rocksdict' ||
        fail "the packages are installed but cannot be imported." "Remove .venv and run \`make setup\` again."
}

main() {
    local wanted
    choose_python
    wanted="$(fingerprint)"
    if [ -x "$VENV/bin/cairn" ] && [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$wanted" ] &&
        [ -x "$(java_command)" ]; then
        return 0
    fi
    ensure_java
    ensure_uv
    build_environment
    printf '%s\n' "$wanted" >"$STAMP"
    say "done: .venv is ready, Java $(java_major). Next: make demo"
}

main "$@"
