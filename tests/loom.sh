#!/usr/bin/env bash
# Every interleaving of what the threads of the runtime share, by the model checker loom: see src/runtime/loom_tests.
#
#   bash tests/loom.sh           # every model
#   bash tests/loom.sh mailbox   # those of src/runtime/loom_tests/mailbox.rs
#
# A model that hangs, because somebody is not woken, ends all of them: the last message has its name, and with
# `--nocapture` after the file one finds "deadlock" above. LOOM_LOG=trace LOOM_LOCATION=1 tell every step.
set -uo pipefail
cd "$(dirname "$0")/.."

# The flag changes how everything is built, so what is built with it has a folder of its own.
export RUSTFLAGS="${RUSTFLAGS-} --cfg steadfast_loom"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
# Tasks that panic on purpose do it many thousand times.
export RUST_BACKTRACE=0

exec cargo test --locked --profile loom --lib -- "loom_tests::${1-}" "${@:2}"
