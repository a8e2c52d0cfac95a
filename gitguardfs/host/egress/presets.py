"""Presets: blocks of allowlist lines for common services and package registries. Pure.

Services change; ``gitguard vm blocked`` shows what is missing. Lines for telemetry are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

_ANTHROPIC = """\
# Claude models and Claude Code: the API, then logging in with a subscription. Logging in with an
# account of the Console needs one line more, which is left out: by it an agent makes API keys, and
# they stay valid when the VM is gone.
#   POST https://api.anthropic.com/api/oauth/claude_cli/create_api_key
POST https://api.anthropic.com/v1/messages
POST https://api.anthropic.com/v1/messages?beta=true
POST https://api.anthropic.com/v1/messages/count_tokens
POST https://api.anthropic.com/v1/messages/count_tokens?beta=true
GET https://api.anthropic.com/v1/models
GET https://api.anthropic.com/api/hello
GET https://api.anthropic.com/api/claude_code/settings
GET https://api.anthropic.com/api/claude_code/policy_limits
GET https://api.anthropic.com/api/oauth/profile
GET https://api.anthropic.com/api/oauth/account/settings
GET https://api.anthropic.com/api/oauth/usage
GET https://api.anthropic.com/api/oauth/claude_cli/roles
POST https://console.anthropic.com/v1/oauth/token
POST https://platform.claude.com/v1/oauth/token
"""

_OPENAI = """\
# OpenAI models and Codex: the API, then logging in with a ChatGPT account.
POST https://api.openai.com/v1/responses
POST https://api.openai.com/v1/responses/compact
POST https://api.openai.com/v1/chat/completions
GET https://api.openai.com/v1/models
POST https://auth.openai.com/oauth/token
POST https://auth.openai.com/api/accounts/deviceauth/usercode
POST https://auth.openai.com/api/accounts/deviceauth/token
POST https://chatgpt.com/backend-api/codex/responses
POST https://chatgpt.com/backend-api/codex/responses/compact
GET https://chatgpt.com/backend-api/codex/models?*
"""

_GOOGLE = """\
# Gemini models and Gemini CLI: the API, then logging in with a Google account.
POST https://generativelanguage.googleapis.com/v1beta/models/*:generateContent
POST https://generativelanguage.googleapis.com/v1beta/models/*:streamGenerateContent?alt=sse
POST https://generativelanguage.googleapis.com/v1beta/models/*:countTokens
GET https://generativelanguage.googleapis.com/v1beta/models
POST https://oauth2.googleapis.com/token
POST https://oauth2.googleapis.com/tokeninfo
GET https://www.googleapis.com/oauth2/v2/userinfo
POST https://cloudcode-pa.googleapis.com/v1internal:loadCodeAssist
POST https://cloudcode-pa.googleapis.com/v1internal:onboardUser
POST https://cloudcode-pa.googleapis.com/v1internal:retrieveUserQuota
POST https://cloudcode-pa.googleapis.com/v1internal:generateContent
POST https://cloudcode-pa.googleapis.com/v1internal:streamGenerateContent?alt=sse
POST https://cloudcode-pa.googleapis.com/v1internal:countTokens
"""

_GITHUB_READ = """\
# Reading GitHub: clone and fetch over HTTPS, raw files, archives and releases. Anybody can have a
# repository there: put OWNER/ before each * if you know whose you need. By the POST git asks for
# objects; pushing needs git-receive-pack, which no line here allows.
GET https://github.com/*/info/refs?service=git-upload-pack
POST https://github.com/*/git-upload-pack
GET https://github.com/*/archive/*
GET https://github.com/*/releases/download/*
GET https://codeload.github.com/*
GET https://raw.githubusercontent.com/*
GET https://objects.githubusercontent.com/*
GET https://release-assets.githubusercontent.com/*
"""

_NPM = """\
# npm, pnpm and yarn: packages, and advisories about them.
GET https://registry.npmjs.org/*
HEAD https://registry.npmjs.org/*
POST https://registry.npmjs.org/-/npm/v1/security/advisories/bulk
POST https://registry.npmjs.org/-/npm/v1/security/audits/quick
GET https://registry.yarnpkg.com/*
HEAD https://registry.yarnpkg.com/*
"""

_NODE = """\
# Node, by nvm: nvm's archive at GitHub, and Node's releases.
GET https://github.com/nvm-sh/nvm/archive/*
GET https://codeload.github.com/nvm-sh/nvm/*
GET https://nodejs.org/dist/*
HEAD https://nodejs.org/dist/*
"""

_UV = """\
# uv: the Pythons that it installs, from its makers or GitHub. uv itself and packages are at PyPI.
GET https://releases.astral.sh/github/python-build-standalone/*
GET https://github.com/astral-sh/python-build-standalone/releases/download/*
GET https://release-assets.githubusercontent.com/github-production-release-asset/*
"""

_CRATES = """\
# cargo: the index and the crates; rustup: toolchains.
GET https://index.crates.io/*
GET https://static.crates.io/crates/*
GET https://crates.io/api/v1/crates/*
GET https://static.rust-lang.org/*
HEAD https://static.rust-lang.org/*
"""

_GO = """\
# go: modules and toolchains from the proxy, and their checksums.
GET https://proxy.golang.org/*
GET https://sum.golang.org/*
"""

PRESETS: Mapping[str, str] = {
    "anthropic": _ANTHROPIC,
    "openai": _OPENAI,
    "google": _GOOGLE,
    "github-read": _GITHUB_READ,
    "npm": _NPM,
    "node": _NODE,
    "uv": _UV,
    "crates": _CRATES,
    "go": _GO,
}
"""Each preset's block by its name; the lines are in normal form."""
