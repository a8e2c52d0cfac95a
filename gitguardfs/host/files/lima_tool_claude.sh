#!/bin/bash
# The agent's command line program, in the agent's home, so that it can update itself.
set -euo pipefail
umask 022
#settings

PACKAGE=@anthropic-ai/claude-code

home=$(getent passwd "$AGENT" | cut -d: -f6)
if [[ ! -x "$home/.local/bin/claude" ]]; then
    # A login shell of the agent's, in the agent's home, with its own environment.
    runuser -l "$AGENT" -s /bin/sh -c "npm install --global --prefix \"\$HOME/.local\" $PACKAGE"
fi
