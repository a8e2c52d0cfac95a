"""Ways in which git comes to run what an agent writes, and clean repositories, as data.

``{file}`` stands for ``tools/x`` of the work tree, which the agent can make. A hook is a
post-commit hook of bash.
"""

# ruff: noqa: E501

RUN_BY_GIT = {
    "a file by its name": [
        "./{file}", "{file} || exit 1", "sh {file}", ". {file}", 'exec sh "{file}" "$@"',
        "[ -f {file} ] && {file}", "if test -e x; then . ./{file}; fi; . ./{file}",
        "A=1 env B=2 {file} | cat", "if {file}; then exit 1; fi", "echo start; {file}",
        'printf %s "$({file})"', "x=`{file}`", "timeout 5 {file}", "nice -n 5 sh {file}",
        "echo | xargs {file}", "cat <<END\ntext\nEND\n{file}", "sh <<END\n{file}\nEND",
        "cat <<END\n$({file})\nEND", "case a in\n a) {file} ;;\nesac", "f() { {file}; }; f",
        "(cd / && true); {file}", "{ {file}; } 2>/dev/null", "! {file}", "eval '. {file}'",
        "bash -o pipefail {file}", "bash -ec '{file}'", "trap ./{file} EXIT", "sh < {file}",
        'bash <<< "{file}"', "env -u X sh {file}", "(exec -a name sh {file})",
        "for x in 1; do {file}; done", "while ! {file}; do :; done", "time {file}",
        "nohup {file}", "setsid -w {file}", "stdbuf -o L {file}", "$'tools/x'", 'tools/"x"',
        "too\\\nls/x", "[[ -n x ]] && {file}", "((1)) && {file}", "find . -maxdepth 0 -exec {file} \\;",
        "true &&\n  {file}", "BASH_ENV={file} bash -c true", "cat <({file})", "sh -- {file}",
        "function f {\n{file}\n}; f", 'cat <<"END"\n"\nEND\n{file}', "umask 022; {file}",
        "coproc {file}; wait", "{file} &\nwait", "x=(a b); {file}", 'echo "${x:-$({file})}"',
        "export Y=$({file})", "[ \"$({file})\" ]", "sh -c 'sh {file}'", "command {file}",
        "if false; then :; elif {file}; then :; fi", "select x in a; do {file}; break; done <<<1",
        'sh() {{ command sh "$@"; }}; sh {file}', "trap -- {file} EXIT", "env -u git {file}", "(exec -a git {file})",
        "timeout -s INT 5 {file}", "cp {file} git-helpers; . git-helpers; rm git-helpers", 'test -v "a[\\$({file})]"',
    ],
    "a file by the top of the work tree": [
        '"$(git rev-parse --show-toplevel)/{file}"', '"$PWD"/{file}', "$PWD/{file}",
        'cd "$(git rev-parse --show-toplevel)" && ./{file}', "`pwd`/{file}", '"${{PWD}}/{file}"',
        'sh "$(pwd)/{file}"', "{project}/{file}", ". \"`git rev-parse --show-toplevel`/{file}\"",
    ],
    "a file by a variable": [
        'X={file}; "$X"', 'for f in tools/*; do "$f"; done', 'P=x; sh "tools/$P"', 'P=x; cd tools; sh "$P"',
        'root=$(git rev-parse --show-toplevel); exec "$root/{file}"', "export d=tools\n$d/x",
        'root="$(git rev-parse --show-toplevel)"\nif true; then\n  sh "${{root}}/{file}"\nfi',
        'for x in tools/*; do sh $x; done', '"tools/$(basename x)"', 'd="$(pwd)"; . "$d/{file}"',
        'set -- {file}; "$@"', 'set -- {file}; sh "$1"', 'read -r x <<< {file}; $x',
        'x=({file}); "${{x[0]}}"', 'printf -v x %s {file}; "$x"', 'run() { "$@"; }; run {file}',
        "${{UNSET:-{file}}}", "x={file}; ${{x}}", "tools/?", "tools/[x]", "{{tools/x,}}",
    ],
    "a file by the place of the hook": [
        '"$(dirname "$0")/../../{file}"', '"$(git rev-parse --git-dir)/../{file}"',
        '"$(dirname "$(readlink -f "$0")")/../../{file}"', '"${{BASH_SOURCE[0]%/*}}/../../{file}"',
        '"${{0%/*}}"/../../{file}', 'top="$(cd "$(dirname "$0")/../.." && pwd)"\n"$top/{file}"',
        'cd "$(dirname "$0")/../.."; ./{file}', ". \"${{0%hooks/*}}../{file}\"",
        'cp {file} "${{0%/*}}/post-merge"; "${{0%/*}}/post-merge"; rm "${{0%/*}}/post-merge"',
        'h=$(git rev-parse --git-path hooks); cp {file} "$h/post-merge"; "$h/post-merge"; rm "$h/post-merge"',
        'for f in "$0".d/../../../{file}; do sh "$(pwd)/{file}"; "$f"; done',
    ],
    "a file that is fed to a shell": [
        "cat {file} | sh", 'eval "$(cat {file})"', "sh -c \"$(grep -v nothing {file})\"",
        'code=$(cat {file})\necho "$code" | sh', "sed s/a/a/ < {file} | sh", "bash <(cat {file})",
        'bash <<< "$(cat {file})"', "source /dev/stdin < {file}", "git show :file | cat - {file} | sh",
        "while read x; do $x; done < <(cat tools/x | sed 1,2d; echo {file})", "tail -n 9 {file} | bash -s",
        "cp {file} .git/hooks/post-merge; .git/hooks/post-merge; rm .git/hooks/post-merge",
        "cat {file} > .git/hooks/post-merge; sh .git/hooks/post-merge; rm .git/hooks/post-merge",
        "exec 3< {file}; sh <&3", "<{file} sh", "cat <<END | sh\n{file}\nEND", "exec 0< {file}; sh", 'eval "$(< {file})"',
        "cp {file} ../../y; sh ../../y", "cp {file} /tmp/y$$; sh /tmp/y$$; rm /tmp/y$$",
    ],
    "files that a program finds": [
        "find . -name x -exec sh {{}} \\;", "find tools -type f -exec {{}} ';'", "run-parts tools",
        "find tools -type f | xargs -n 1 sh", "find tools -type f | xargs -I % sh %",
        'run-parts --regex x -- "$(git rev-parse --show-toplevel)/tools"', "ls tools/x | xargs sh",
        "read -r PATH <<< tools; x", "for PATH in tools; do x; done", "printf -v PATH %s tools; x", "PATH+=:tools; x",
        "split --filter={file} file; rm -f x??", "sort --compress-program=./{file} -S 1k <(seq 99999) > /dev/null; true",
        "LESSOPEN='|./{file} %s' less -f file < /dev/null | cat; {file}", "PS4='$(./{file})'; set -x; true", "alias y={file}; shopt -s expand_aliases\ny",
        "hash -p {file} y; y", "find tools -name x -exec env {{}} \\;", "split --filt={file} file; rm -f x??",
        "echo | sed 's|.*|{file}|e'", "echo | sed '1e{file}'", "sort --compress-prog=./{file} -S 1k <(seq 99999) > /dev/null; true",
        "sed -n '1e {file}' file", "sed 's/.*/tools\\/x/e' file", ': "${{BASH_ENV:={file}}}"; export BASH_ENV; bash -c true',
        "git show :tools/x --output=.git/hooks/post-merge; git add {file}; git checkout-index -f --prefix=.git/hooks/ {file}; sh .git/hooks/{file}", "PATH=tools:$PATH x", 'PATH="$PWD/tools:$PATH"; x', 'export PATH="$PATH:tools"; x',
        "env PATH=tools:/usr/bin:/bin x", "PATH=:$PATH; cd tools; x", "find tools -type f -ok {{}} \\; <<< y",
    ],
    "a command that git runs": [
        "git -c alias.x='!{file}' x", "git -c core.fsmonitor=./{file} status", "git grep -O./{file} two",
        "git difftool -y -x ./{file} start", "GIT_EXTERNAL_DIFF=./{file} git diff start",
        "git -c core.pager={file} -c color.ui=always --paginate log > /dev/null; {file}", "git submodule foreach {file}; {file}",
        "git config alias.zz '!{file}'; git zz; git config --unset alias.zz", "git bisect run {file}; {file}",
        "export GIT_EDITOR={file}; git commit --amend --allow-empty -e",
        "git config core.fsmonitor ./{file}; git status; git config --unset core.fsmonitor",
        "git config include.path ../y; printf '[alias]\\n\\tyy = !{file}\\n' > y; git yy; git config --unset include.path",
        "git -c protocol.ext.allow=always ls-remote 'ext::{file} %S'; true", "ln -s x tools/git-x; git --exec-path=tools x; rm tools/git-x",
        "git clone -q -c core.fsmonitor=$PWD/{file} . ../y; git -C ../y status; rm -rf ../y",
        "git ls-remote --upload-pack={file} . ; true", "git -c diff.external={file} diff start",
        "git ls-remote --upload-pa={file} . ; true", "git grep --open-files-in-p=./{file} two",
        "git clone -q --conf=core.fsmonitor=$PWD/{file} . ../y; git -C ../y status; rm -rf ../y",
        "mkdir -p h/git; printf '[core]\\n\\tfsmonitor = {project}/{file}\\n' > h/git/config; XDG_CONFIG_HOME=$PWD/h git status; rm -r h",
        "mkdir -p h; printf '[core]\\n\\tfsmonitor = {project}/{file}\\n' > h/.gitconfig; HOME=$PWD/h git status; rm -r h",
    ],
}  # fmt: skip
"""By kind, lines of hooks; each is run with git to see that it does run ``{file}``."""

OF_OTHER_PROGRAMS = {
    "modules, libraries and options of an interpreter": [
        "PYTHONPATH=tools python3 x.py", "export PYTHONPATH=$PWD/lib; python3 /usr/bin/x",
        "NODE_PATH=tools node -e 'require(\"x\")'", "PERL5LIB=lib perl -e 'use X'", "perl -I tools -MX -e 1",
        "perl -Itools x.pl", "RUBYLIB=lib ruby -rx -e 1", "node -r ./tools/x -e 1", "python3 -m x", "python3 -mx",
        "node -e 'require(\"./tools/x\")'", "python3 -c 'import x'", "echo 'import x' | python3",
        "python3 <<END\nimport x\nEND", "python3 - < x.py", "LD_PRELOAD=./x.so true", "ruby -I. -rx -e 1",
        "NODE_OPTIONS='-r ./x' node /usr/bin/y", "ZDOTDIR=tools zsh -c true", "LD_AUDIT=./x.so true", "PYTHON=python3\n$PYTHON -m x", "RUBYOPT=-r./x ruby /usr/bin/y",
    ],
    "a script of an interpreter": [
        "python3 x.py", "node tools/x.js", "perl x.pl", "ruby x.rb", "php x.php", "lua x.lua", "tsx x.ts",
        "ts-node x.ts", "java -jar x.jar", "awk -f x.awk", "deno run x.ts", "bun x.ts", "fish x", "zsh ./x",
        "tclsh x.tcl", "Rscript x.R", "osascript x.scpt", "python3.12 -u x.py", "/usr/bin/env python3 x.py",
        "/usr/bin/python3 x.py", "powershell -File x.ps1", "pwsh x.ps1", "groovy x.groovy", "sed -f x.sed y",
    ],
    "a program that obeys the work tree": [
        "make", "/usr/bin/make lint", "MAKE=make; $MAKE", "env -u X make", "exec make lint", "just check",
        "npm test", "npx lint-staged", "yarn lint", "pnpm run x", "cargo fmt --check", "go generate", "tox",
        "pip install -e .", "python3 setup.py", "treefmt", "trunk check", "hk run pre-commit", "gradle check",
        "rusty-hook run pre-commit", "captainhook hook:pre-commit", "uv run x", "poetry run x", "mise run x",
        "find Makefile -execdir make \\;", "nix develop", "direnv exec . x", "docker compose run x",
        "bundle exec rake", "composer test", "terraform apply", "ansible-playbook x.yml", "unknown-program",
        "sudo -u me make", "git ls-files | xargs eslint", 'sh -c "make"', "swift test", "earthly +lint",
        'make() {{ command make "$@"; }}; make check', 'make() {{ /usr/bin/make "$@"; }}; make check',
        "make() {{ :; }}; unset -f make; make check", "sudo -u git make check", "exec -a git make check", "timeout -s test 5 make", "WGETRC=tools/x wget a",
        "zip -TT tools/x a b", "wget -e use_askpass=tools/x a", "curl -Ktools/x", "RIPGREP_CONFIG_PATH=tools/x rg a",
        "git send-email --smtp-server=./x a", "git rebase -ix tools/x start",
    ],
    "the hook of a program that puts hooks in": [
        'PREK="/usr/bin/prek"\nexec "$PREK" hook-impl --hook-dir "$HERE" --hook-type=pre-commit -- "$@"',
        "exec pre-commit hook-impl --config=.pre-commit-config.yaml --hook-type=pre-commit",
        'call_lefthook()\n{{\n  lefthook "$@"\n}}\ncall_lefthook run "x"', '# husky\n. "$(dirname "$0")/husky.sh"',
        'if [ "$HK" != 0 ]; then exec hk run pre-commit "$@"; fi', "overcommit-hook --run", "npx rusty-hook run x",
        "vendor/bin/captainhook hook:pre-commit \"$@\"", 'if [ "$SKIP_SIMPLE_GIT_HOOKS" = 1 ]; then exit 0; fi\nnpx x',
        'for hook in "$0".d/*; do "$hook" "$@"; done', 'run-parts "$(dirname "$0")/pre-commit.d"',
    ],
}  # fmt: skip
"""The same for programs that this machine need not have."""

SETTINGS = [
    ("core.hooksPath", ".githooks"), ("core.hooksPath", "{project}/hooks"), ("core.fsmonitor", "./x"),
    ("core.editor", "./x"), ("core.pager", "tools/x"), ("core.sshCommand", "ssh -F ssh_config"),
    ("core.sshCommand", "ssh -o ProxyCommand=./x"), ("core.sshCommand", "./x"), ("core.askPass", "tools/x"),
    ("core.gitProxy", "./x"), ("core.alternateRefsCommand", "./x"), ("sequence.editor", "tools/x"),
    ("diff.external", "./x"), ("diff.a.textconv", "python3 -m x"), ("diff.a.command", "sh x"),
    ("merge.a.driver", "./x %A"), ("filter.a.clean", "tools/x"), ("filter.a.smudge", "cat tools/x | sh"),
    ("filter.a.process", "npx x"), ("filter..clean", "./x"), ("credential.helper", "!./x"),
    ("credential.https://h.helper", "!tools/x"), ("gpg.program", "./x"), ("gpg.ssh.program", "tools/x"),
    ("trailer.a.command", "./x"), ("alias.a", "!./x"), ("alias.a", "!cd \"$GIT_PREFIX\" && ./x"),
    ("alias.a", '!"$(git rev-parse --show-toplevel)/x"'), ("alias.a", "!f() {{ ./x; }}; f"), ("alias.a", "!X=./x; $X"),
    ("alias.a", "grep -O./x one"), ("alias.a", "difftool -x ./x"), ("alias.a", "-c core.pager=./x log"),
    ("alias.a", "rebase --exec ./x start"), ("alias.a", "!cat x | sh"), ("alias.a", "!python3 x.py"),
    ("alias.a", "!node tools/x.js"), ("alias.a", "!PATH=tools:$PATH x"), ("include.path", "../x"),
    ("includeIf.onbranch:y.path", "../x"), ("init.templateDir", "{project}/x"), ("remote.a.uploadpack", "./x"),
    ("remote.a.receivepack", "tools/x"), ("remote.a.url", "ext::./x"), ("url.ext::./x .insteadOf", "foo:"),
    ("submodule.a.url", "ext::x"), ("submodule.a.update", "!./x"), ("difftool.a.cmd", "./x"),
    ("mergetool.a.cmd", "tools/x $MERGED"), ("mergetool.a.path", "./x"), ("browser.a.cmd", "./x"), ("pager.log", "./x"),
    ("interactive.diffFilter", "tools/x"), ("sendemail.toCmd", "./x"), ("core.editor", "vim -S x.vim"),
    ("core.pager", "unshare ./x"), ("core.pager", "env -u A ./x"), ("core.pager", "lesspipe ./x"),
    ("core.editor", "emacs -l x.el"), ("uploadpack.packObjectsHook", "./x"), ("tar.a.command", "./x"),
    ("lfs.customtransfer.a.path", "./x"), ("imap.tunnel", "./x"), ("gpg.ssh.allowedSignersFile", "x"),
    ("diff.a.textconv", "exiftool -config x.config"), ("core.pager", "rsync -e ./x"), ("core.editor", "vim -u vimrc"),
    ("core.sshCommand", "ssh -o ProxyCommand=tools/x"), ("core.editor", 'vim --cmd "so tools/x"'), ("tar.a.command", "tar -I tools/x"),
]  # fmt: skip
"""Settings of a repository, ``{project}`` being its work tree."""

PLACES = [
    "mv .git ../{name}-store; echo 'gitdir: ../{name}-store' > .git", "mv .git .store; ln -s .store .git",
    "mkdir a; echo 'gitdir: ../store' > a/.git", "echo ../../meta > .git/commondir", "mkdir -p store/refs store/objects; printf '[core]\\n\\tpager=./x\\n' > store/config",
    "rm .git/config; ln -s ../config .git/config", "mkdir .git/hooks; ln -s ../../x .git/hooks/post-commit",
    "ln -s ../hooks .git/hooks", "mkdir -p .git/objects/info; echo ../../objects > .git/objects/info/alternates",
    "ln -s .git/hooks hooks", "ln -s .git x", "git init -q --bare bare; git config --file bare/config core.pager ./x",
    "mkdir -p a.git/hooks; echo > a.git/hooks/post-commit; chmod +x a.git/hooks/post-commit",
    "mkdir -p ../../outside; ln -s ../../outside x", "echo '[core]' > x; ln x .git/config.worktree",
    "mkdir -p .hg; echo > .hg/hgrc", "mkdir -p .jj/repo", "mkdir .sl", "mkdir -p .repo/repo",
    "printf '[submodule \"a\"]\\n\\tpath = a\\n\\turl = ext::x\\n' > .gitmodules",
    "mkdir -p a; printf 'ref: refs/heads/x\\n' > a/HEAD; printf '[core]\\n\\tfsmonitor=./x\\n' > a/config",
]  # fmt: skip
"""Commands of a shell that put something in an odd place of a repository."""

CLEAN_HOOKS = [
    "# this replaces husky\nexit 0", 'echo "see the docs of lefthook"', "git log -1 | grep -q overcommit && exit 1\nexit 0",
    "curl -s https://example.org/prek/notify", "let n=1; mapfile -t a < list; unset a", "git ls-files | xargs -n 1 grep -l x",
    "sed '/x/d; s/e /f/g; s|a|b|' list", "exit 0", "echo see tools/x, or ./tools/x", "exec git diff-index --check --cached HEAD --",
    'git diff --cached --name-only | grep -q "\\.orig$" && exit 1', "sed -n 1p src/version.h",
    'version=$(sed -n "s/.*VERSION //p" src/version.h); echo "$version"', "cat docs/a/b.txt >&2", "touch build/stamp",
    "grep -rn TODO ./src || true", "cp a b; mkdir -p out/x; rm -f out/x/y", "git fetch origin main",
    'case "$1" in\nrefs/heads/main) echo no/way; exit 1 ;;\n(tools/*|*.x) true ;;\nesac', 'test -f tools/x && echo tools/x',
    "cat <<'END'\nrun ./tools/x\n`./x`\nEND", 'while read -r local sha remote rest; do [ "$sha" = 0 ] && continue; done',
    'if [[ "$1" =~ ^(a|b)/c$ && -n "$2" ]]; then printf "%s\\n" "a/b"; fi', "n=$((n + 1)); (( n > 1 )) && exit $n",
    'files=(a/b c/d); for f in "${{files[@]}}"; do echo "$f"; done', "find . -name '*.orig' -exec rm -f {{}} +",
    "git ls-files -z | xargs -0 grep -l x", "command -v git-lfs >/dev/null 2>&1 || {{ echo >&2 \"no git-lfs\"; exit 2; }}\ngit lfs post-commit \"$@\"",
    "awk '/x/ {{print $2}}' tools/list", 'root=$(git rev-parse --show-toplevel)\ncp a "$root/b"\ncd "$root" || exit 1',
    'die() {{ echo "$1" >&2; exit 1; }}\ngrep -q "^Signed-off-by: " "$1" || die "no sign-off in tools/x"',
    "gitleaks protect --staged", "shellcheck tools/x", "gofmt -l src/", 'trap "rm -f tmp/x" EXIT', "git -c color.ui=always log -1",
    "curl -fsS https://example.org/hook -d @tools/data", "exec < /dev/tty; read -r answer", "ruff check src/x.py", "#./tools/x\n# make",
    'PATH="/usr/local/bin:$PATH"; export PATH', "sleep 1 &\nwait", "git submodule update --init", 'echo "$(cat VERSION)" > build/version',
    'if test $# != 1 ; then\n  echo "$0 requires an argument."\n  exit 1\nfi\nif test ! -f "$1" ; then\n  echo "file does not exist: $1"\n  exit 1\nfi\nrandom=$( (whoami ; hostname ; date; cat $1 ; echo $RANDOM) | git hash-object --stdin)\ndest="$1.tmp.${{random}}"\ntrap \'rm -f "${{dest}}"\' EXIT\nif ! git stripspace --strip-comments < "$1" > "${{dest}}" ; then\n   echo "cannot strip comments from $1"\n   exit 1\nfi\nreviewurl="$(git config --get gerrit.reviewUrl)"\nif test -n "${{reviewurl}}" ; then\n  if ! git interpret-trailers --parse < "$1" | grep -q \'^Link:.*/id/I[0-9a-f]\\{{40\\}}$\' ; then\n    if ! git interpret-trailers --if-exists doNothing --trailer "Link: ${{reviewurl%/}}/id/I${{random}}" < "$1" > "${{dest}}" ; then\n      echo x\n    fi\n  fi\nfi\nif ! mv "${{dest}}" "$1" ; then exit 1; fi',
    'set -euo pipefail\nbranch="$(git rev-parse --abbrev-ref HEAD)"\nprotected=(main master)\nfor b in "${{protected[@]}}"; do\n  if [[ "$branch" == "$b" ]]; then\n    echo "no commits to $b" 1>&2; exit 1\n  fi\ndone\nwhile IFS= read -r -d \'\' file; do\n  size=$(wc -c < "$file")\n  if (( size > 1024 * 1024 )); then printf \'%s is %d\\n\' "$file" "$size"; bad=1; fi\ndone < <(git diff --cached --name-only -z --diff-filter=AM)\n[ "${{bad:-0}}" -eq 0 ] || exit 1\ncase "$(uname -s)" in\n  Darwin|Linux) : ;;\n  *) echo unknown ;;\nesac',
    'msg=$(head -1 "$1")\necho "$msg" | grep -qE \'^(feat|fix|docs)(\\([a-z]+\\))?: .+\' || {{ echo >&2 "bad"; exit 1; }}\ncase $msg in (*WIP*) exit 1;; esac\nn=`echo "$msg" | wc -c`; if [ $n -gt 72 ]; then exit 1; fi\nsed -i.bak -e "1s/^/[$(git symbolic-ref --short HEAD)] /" "$1"',
    'changed() {{ git diff --name-only HEAD@{{1}} HEAD | grep "^$1" >/dev/null 2>&1; }}\nif changed \'package-lock.json\'; then echo "run npm ci"; fi\nfind . -name \'*.pyc\' -delete; find . -type d -empty -exec rmdir {{}} \\; ; awk -F: \'{{ if ($1 > 2 || $3) print $2 }}\' /etc/passwd | xargs -r -n1 echo\ntput setaf 1 2>/dev/null || true; export LC_ALL=C; python3 --version >/dev/null',
]  # fmt: skip
"""Hooks that run nothing of the agent's."""

CLEAN_SETTINGS = [
    ("alias.root", "!git rev-parse --show-toplevel"), ("alias.lg", "log --graph --oneline"),
    ("alias.x", "!f() {{ git log \"$1\" && git show -- tools/x; }}; f"), ("alias.make", "!make"), ("alias.v", "!cat src/version.h"),
    ("alias.e", "!echo tools/x"), ("alias.cd", "!cd \"$(git rev-parse --show-toplevel)\" && git status"),
    ("core.editor", "code --wait"), ("core.pager", "less -FRX"), ("core.pager", "delta --dark"),
    ("filter.lfs.process", "git-lfs filter-process"), ("filter.lfs.clean", "git-lfs clean -- %f"), ("credential.helper", "store --file ~/.git-credentials"),
    ("credential.helper", "!/usr/bin/gh auth git-credential"), ("core.sshCommand", "ssh -i ~/.ssh/id_work -o IdentitiesOnly=yes"),
    ("gpg.program", "/usr/bin/gpg2"), ("merge.union.driver", "git merge-file --union %A %O %B"), ("difftool.a.cmd", 'meld "$LOCAL" "$REMOTE"'),
    ("core.fsmonitor", "true"), ("diff.exif.textconv", "exiftool"), ("filter.nb.clean", "python3 -I -m nbstripout"), ("remote.origin.url", "https://example.org/a/b.git"), ("pull.rebase", "true"),
]  # fmt: skip
"""Settings that lead to nothing of the agent's."""

CLEAN_TREES = [
    "mkdir -p data/refs data/objects; echo 'a = 1' > data/config", "mkdir ../{name}-sibling; ln -s ../{name}-sibling sibling",
    "mkdir docs; echo > docs/a; ln -s docs/a a; ln -s a b", "mkdir -p store/refs store/objects/xx; echo > store/config; echo > store/HEAD.txt",
    "for p in a b c; do mkdir -p node_modules/$p; echo '{{\"scripts\": {{\"prepare\": \"husky install\"}}}}' > node_modules/$p/package.json; done",
    "mkdir -p .venv/bin ../../py/bin; echo > ../../py/bin/python3.12; echo > .venv/pyvenv.cfg; ln -sf \"$(cd ../..; pwd)/py/bin/python3.12\" .venv/bin/python; ln -s python .venv/bin/python3; ln -s python .venv/bin/python3.12",
    "echo '{{\"scripts\": {{\"test\": \"jest\"}}}}' > package.json", "mkdir config hooks; echo > hooks/README.md; echo > config/a.yml",
    "mkdir -p src/hooks; echo 'export const x = 1' > src/hooks/useX.ts; echo '[a]' > src/config",
    "git init -q sub; mkdir -p .github/workflows; echo > .github/workflows/a.yml", "echo '-----BEGIN PRIVATE KEY-----' > tools.txt; echo '[a]' > setup.cfg",
    "mkdir -p node_modules/.bin node_modules/x; echo > node_modules/x/cli.js; ln -s ../x/cli.js node_modules/.bin/x",
]  # fmt: skip
"""Commands of a shell that make trees with nothing wrong in them."""
