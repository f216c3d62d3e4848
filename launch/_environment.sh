# shellcheck shell=bash
# Sourced by the scripts beside it. Leaves a complete environment in .venv and sets
#   root    the repository
#   python  the environment's interpreter
# An environment that is complete for these requirements is used as it is, without any network.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
python=$root/.venv/bin/python

_is_supported() {
  "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
    >/dev/null 2>&1
}

_make_environment() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3 python; do
    if _is_supported "$candidate"; then
      echo "Making .venv with $candidate" >&2
      "$candidate" -m venv --clear "$root/.venv"
      return
    fi
  done
  echo "No Python 3.11, 3.12 or 3.13 with its venv module is on the PATH: install one of them" \
    "(on Debian or Ubuntu: python3-venv too) and run this script again." >&2
  return 1
}

# What the environment must be made from. The folder counts, as scripts in .venv name it.
_wanted() {
  echo "$root"
  cat -- "$root/requirements.txt" "$root/launch/quickstart-requirements.txt" \
    "$root/setup.cfg" "$root/pyproject.toml"
}

_install() {
  local pip=("$python" -m pip --disable-pip-version-check install)
  "${pip[@]}" --requirement "$root/requirements.txt"
  "${pip[@]}" --no-deps --requirement "$root/launch/quickstart-requirements.txt"
  "${pip[@]}" --no-deps --no-build-isolation --editable "$root"
}

# The stamp is written last, so an interrupted installation is repeated.
_stamp=$root/.venv/installed-from.txt
if ! { _is_supported "$python" && [[ -f $_stamp ]] && _wanted | cmp -s - "$_stamp"; }; then
  _is_supported "$python" || _make_environment
  rm -f -- "$_stamp"
  echo "Installing into $root/.venv (once; about two minutes and 1.2 GB)" >&2
  _install
  _wanted >"$_stamp.partial"
  mv -- "$_stamp.partial" "$_stamp"
fi
