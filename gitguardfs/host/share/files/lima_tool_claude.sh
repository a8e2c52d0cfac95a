#!/bin/bash
# Claude's command line program, in the home of the agent's user, so that it can update itself.
set -euo pipefail
umask 022
#settings

PACKAGE=@anthropic-ai/claude-code

home=$(getent passwd "$AGENT" | cut -d: -f6)
if [[ ! -x "$home/.local/bin/claude" ]]; then
    # In a login shell of the agent's user: with that user's rights, home and environment.
    runuser -l "$AGENT" -s /bin/sh -c "npm install --global --prefix \"\$HOME/.local\" $PACKAGE"
fi
