# Sourced: reads the console blocks of docs/install.md.

readonly page=docs/install.md

# The block below the heading $1: lines of commands, with `$ `, and what they print.
block() {
    awk -v heading="## $1" '
        $0 == heading { found = 1 }
        found && /^```console/ { inside = 1; next }
        inside && /^```/ { exit }
        inside { print }' "$page"
}

# read_block HEADING sets `commands`, without what continues a line, and `expected`.
commands='' expected=''
read_block() {
    local block
    block=$(block "$1")
    commands=$(sed -n 's/^\$ //p' <<<"$block")
    expected=$(grep -v '^\$ ' <<<"$block" || true)
    [[ -n $commands && -n $expected ]] || die "$page has no commands with what they print below: $1"
}
