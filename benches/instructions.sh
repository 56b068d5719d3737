#!/usr/bin/env bash
# How many instructions the hot paths take, counted by callgrind.
#
#   bash benches/instructions.sh                  # the table
#   bash benches/instructions.sh link dial-200    # these paths only, one line each
#
# Each path runs with two numbers of rounds; the difference, less that of an empty loop, is the cost of its rounds. So
# set-up, environment and addresses do not matter, and the same build gives the same numbers. Installs what is missing
# (Debian; Rust has to be there).
set -euo pipefail
cd "$(dirname "$0")/.."

few=500
many=4500

if ! command -v valgrind >/dev/null; then
  root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  "${root[@]}" apt-get update -qq
  "${root[@]}" apt-get install -y -qq --no-install-recommends valgrind >/dev/null
fi

binary=$(cargo build --locked --all-features --profile bench --bench instructions \
  --message-format=json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')

count() { # path, rounds: instructions of the whole run
  local profile
  profile=$(mktemp)
  valgrind --tool=callgrind --callgrind-out-file="$profile" "$binary" "$1" "$2" 2>&1 >/dev/null |
    awk '/Collected/ { print $4 }'
  rm -f "$profile"
}

between() { # path: instructions of all rounds between the two numbers
  echo $(($(count "$1" "$many") - $(count "$1" "$few")))
}

empty=$(between empty)

cost() { # path: instructions of a round, without the loop's own, rounded
  local all
  all=$(between "$1")
  echo $(((all - empty + (many - few) / 2) / (many - few)))
}

if [ $# -gt 0 ]; then
  for path; do "$binary" "$path" 1 >/dev/null; done # says which one there is not; below that would be lost
  for path; do echo "$path $(cost "$path")"; done
  exit
fi

row() { # what, the most that the aim allows (none: "-"), instructions, a word on the aim
  local met="-"
  if [ "$2" != - ]; then
    if [ "$3" -le "$2" ]; then met="yes"; else met=$(awk -v a="$2" -v b="$3" 'BEGIN { printf "no, %.1f ×", b / a }'); fi
  fi
  echo "| $1 | ${4:-$2} | $3 | $met |"
}

echo "| path | aim | instructions | met |"
echo "|---|---|---|---|"
swap=$(cost arc-swap)
mutex=$(cost mutex)
pair=$(cost two-mutexes)
rng=$(cost small-rng)
row "clone and drop of an \`Arc\`" - "$(cost arc-clone)"
row "arc-swap \`load\`" - "$swap"
row "std mutex, lock and unlock" - "$mutex"
row "the same twice, as a dial does" - "$pair"
row "\`SmallRng\`, one u64" - "$rng"
row "a draw by widening multiplication" - "$(cost uniform)"
row "\`CachedLink::current\`" 14 "$(cost cached-link)" "≤ 14"
row "\`Link::current\`" $((swap * 13 / 10)) "$(cost link)" "≤ 1.3 × arc-swap \`load\` = $((swap * 13 / 10))"
row "\`Gate::is_closed\`" 8 "$(cost is-closed)" "≤ 8"

dial() { # what, path, tenths of a mutex
  local instructions
  instructions=$(cost "$2")
  row "$1" $((pair * $3 / 10)) "$instructions" "≤ $(($3 / 10)).$(($3 % 10)) × two mutexes = $((pair * $3 / 10))"
  row "$1, against one mutex" $((mutex * $3 / 10)) "$instructions" "≤ $(($3 / 10)).$(($3 % 10)) × one mutex = $((mutex * $3 / 10))"
}
dial "dial through a gate: admit and settle, closed" dial-closed 15
dial "the same with 200 waiting, and queueing again behind them" dial-200 40
row "the same with 10,000 waiting" - "$(cost dial-10000)"

for jitter in band decorrelated equal full none; do
  row "next delay, $jitter" $((rng * 3)) "$(cost "delay-$jitter")" "≤ 3 × \`SmallRng\` = $((rng * 3))"
done

events=$("$binary" life)
first=$(between life-0)
before=$first
dearest=0
for ((event = 1; event <= events; event++)); do
  now=$(between "life-$event")
  step=$(((now - before) / (many - few)))
  if [ "$step" -gt "$dearest" ]; then dearest=$step which=$event; fi
  before=$now
done
row "one \`Lifecycle\` step, gate included: average of a life of $events events" 400 \
  $(((before - first) / (many - few) / events)) "≤ 400"
row "its dearest step ($("$binary" life "$which"))" 400 "$dearest" "≤ 400"
decisions=$("$binary" decisions-in-a-round)
row "a decision of the runtime: shell, lock, machine, publication" - $(($(cost decision) / decisions))
