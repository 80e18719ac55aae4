# Sourced: finds Helm, or builds it into target/tools with Go. The script has the variable `tools`.

readonly helm_version=v3.22.0

# Sets HELM_BIN, unless it names a Helm of version 3.
install_helm() {
    local home=$tools/helm-$helm_version
    if [[ -n ${HELM_BIN:-} ]]; then return; fi
    if [[ ! -x $home/bin/helm ]]; then
        command -v go >/dev/null || {
            echo "scripts/${0##*/}: needs Go to build Helm: install it, or set HELM_BIN" >&2
            exit 2
        }
        echo "   building Helm $helm_version"
        GOBIN=$home/bin GOPATH=$home/go GOFLAGS=-modcacherw \
            go install "helm.sh/helm/v3/cmd/helm@$helm_version"
        rm -rf "$home/go" # its sources
    fi
    export HELM_BIN=$home/bin/helm
}
