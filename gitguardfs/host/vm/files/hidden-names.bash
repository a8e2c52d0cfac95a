# Says in the agent's shell, after a command that failed, which option shows a name that cannot be
# made since it is hidden. Before this come the settings of this VM.

gitguard_hides() {
    local name=${1,,} glob
    for glob in "${GITGUARD_SHOW[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ $name != ${glob,,} ]] || return 1
    done
    [[ $name =~ ^($GITGUARD_SECRETS)$ && ! $name =~ ^($GITGUARD_EXAMPLES)$ ]]
}

gitguard_is_shared() {
    local view
    for view in "${GITGUARD_VIEWS[@]}"; do
        [[ $1/ != "$view"/* ]] || return 0
    done
    return 1
}

gitguard_explain() {
    local status=$? number line words word name above
    read -r number line <<<"$(HISTTIMEFORMAT='' history 1)"
    [[ $number != "${GITGUARD_SEEN-}" ]] || return "$status" # no new command
    GITGUARD_SEEN=$number
    ((status)) || return 0
    read -ra words <<<"${line//[\"\'<>=;]/ }"
    for word in "${words[@]}"; do
        name=${word##*/}
        gitguard_hides "$name" || continue
        [[ $word == */* ]] || word=./$word
        above=$(cd -- "${word%/*}/" 2>/dev/null && pwd -P) || continue
        gitguard_is_shared "$above" || continue
        [[ -w $above && ! -e $word ]] || continue
        echo "gitguard: the name $name is hidden in this VM, and no such file can be made here;" \
            "to show it, stop the VM, then: gitguard vm up --show $name" >&2
        break
    done
    return "$status"
}

PROMPT_COMMAND="gitguard_explain${PROMPT_COMMAND:+; $PROMPT_COMMAND}"
