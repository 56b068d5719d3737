#!/usr/bin/env bash
# Every test of this repository: unit, integration and documentation tests, with all features, and the models of what
# threads share.
#
#   bash tests/all.sh          # everything
#   bash tests/all.sh needs    # only installs what is missing
#
# Installs what is missing (Debian; Rust has to be there). Passing tests are counted, failures are shown in full. The
# last line is the sum over all test binaries; the exit code is 0 only if everything ran and passed.
set -uo pipefail
cd "$(dirname "$0")/.."

install() { # the packages of Debian named
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  "${root[@]}" apt-get update -qq && "${root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# What the tests need beside Rust.
needs() {
  command -v cargo >/dev/null || { echo "cargo is missing: install Rust with rustup, then run this again" >&2; return 1; }
  command -v cc >/dev/null || install gcc libc6-dev || return 1
  # Servers that tests start (each on a free port, in a fresh directory, ended by its process id) are installed here.
}

needs || { echo "0 passed, 1 failed"; exit 1; }
[ "${1-}" != needs ] || exit 0

log=$(mktemp)
trap 'rm -f "$log"' EXIT
seconds=$SECONDS

# A property that fails shrinks through hundreds of panics, each with a backtrace where the caller asked for them.
export RUST_BACKTRACE=0

# Runs tests. Passed ones are left out of what is shown, not out of what is counted.
show() {
  CARGO_TERM_COLOR=never "$@" 2>&1 | tee -a "$log" |
    grep --line-buffered -vE '^(test .* \.\.\. ok|running [0-9]+ tests?)$' | cat -s
  local result=${PIPESTATUS[0]}
  if [ "$code" = 0 ]; then code=$result; fi
}

test=(cargo test --locked --all-features --no-fail-fast)
echo "building the tests"
"${test[@]}" --no-run --quiet >"$log" 2>&1
code=$?
if [ "$code" != 0 ]; then
  cat "$log"
else
  : >"$log"
  show "${test[@]}"
  echo "building and running the models of what threads share"
  show bash tests/loom.sh
fi

# Each binary ends with one line `test result: ok. 12 passed; 0 failed; …`.
read -r passed failed ignored < <(awk '
  /^test result: / { for (i = 2; i <= NF; i++) sum[$i] += $(i - 1) }
  END { print sum["passed;"] + 0, sum["failed;"] + 0, sum["ignored;"] + 0 }' "$log")
# A build that fails, or a binary that dies, leaves no such line.
if [ "$code" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
if [ "$code" = 0 ] && [ "$failed" != 0 ]; then code=1; fi
if [ "$passed" = 0 ] && [ "$code" = 0 ]; then echo "no test ran" >&2; failed=1 code=1; fi

echo "the tests took $((SECONDS - seconds)) s; $ignored ignored"
echo "$passed passed, $failed failed"
exit "$code"
