# shellcheck shell=bash
# Sourced by the scripts beside it: how they refuse a command line, and how they run commands.

fail() {
  echo "${0##*/}: $*" >&2
  exit 2
}

# Prints a command and, unless only that was asked for, runs it.
run_command() {
  printf '+' >&2
  printf ' %q' "$@" >&2
  printf '\n' >&2
  [[ ${dry_run-} ]] || "$@"
}
