# Installs tools of cargo's into target/tools. A script sources this file from the root of the
# repository.

# install_tool CRATE VERSION [FLAG...] installs a tool whose program has the name of its crate,
# unless that version is there; further flags are those of `cargo install`. Cargo lists what it
# installed in .crates.toml. A debug build: the tools run for seconds.
install_tool() {
    local root=target/tools
    if [[ -x $root/bin/$1 ]] && grep -qs "^\"$1 $2 " "$root/.crates.toml"; then return; fi
    echo "   installing $1 $2 (a minute or two)"
    # --force: a program that cargo has not listed may be in its place.
    cargo install --quiet --locked --debug --force "$1" --version "$2" --root "$root" "${@:3}"
}
