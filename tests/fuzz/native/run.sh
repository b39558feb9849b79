#!/usr/bin/env bash
# run.sh BUILD SECONDS RUNS SEED TARGET...
#
# Runs each target for SECONDS or RUNS inputs (-1 for no end), whichever ends first, with what earlier runs found and the corpus that is kept here. What
# reaches something new goes to BUILD/corpus/TARGET; an input that ends a target is kept as
# BUILD/TARGET-crash-NUMBER. Ends with 1 where one did.
set -uo pipefail
build=$1 seconds=$2 runs=$3 seed=$4
shift 4
programs=$build/tests/fuzz/native
corpora=$(dirname "$0")/../corpus
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=1:allocator_may_return_null=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

if ("$programs/fuzz_planted" -max_total_time=20 -seed="$seed" \
    -artifact_prefix="$build/planted-" || exit 1) >"$build/planted.log" 2>&1; then
  echo "fuzz_planted: the driver did not find the bug that is there to be found" >&2
  exit 1
fi
rm -f "$build"/planted-crash-*

failed=0
for target in "$@"; do
  found=$build/corpus/$target
  mkdir -p "$found"
  log=$build/$target.log
  if "$programs/fuzz_$target" -max_total_time="$seconds" -runs="$runs" -seed="$seed" \
      -timeout=25 -max_len=2048 -artifact_prefix="$build/$target-" "$found" "$corpora/$target" >"$log" 2>&1; then
    tail -n 1 "$log"
  else
    cat "$log" >&2
    echo "fuzz_$target FAILED" >&2
    failed=1
  fi
done
exit "$failed"
