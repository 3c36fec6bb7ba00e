#!/usr/bin/env bash
# Prints the path of a browser for tests/system/test_board_browser.py; installs Debian's Chromium where there is none and it may.
set -euo pipefail
find_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
find_browser && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
  echo "chromium.sh: no chromium, chromium-browser or google-chrome here: install one, the browser tests are skipped." >&2
  exit 3
fi
export DEBIAN_FRONTEND=noninteractive
if ! { timeout 120 apt-get -qq update && timeout 300 apt-get -qq install -y --no-install-recommends chromium; } > /dev/null; then
  echo "chromium.sh: apt-get cannot install chromium here: the browser tests are skipped." >&2
  exit 3
fi
find_browser
