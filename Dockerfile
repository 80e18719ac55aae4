# The images of the sidecar and of its tools:
#
#   docker build -t ratelease .
#   docker build -t ratectl --target ratectl .
#   docker build -t ratelease-injector --target ratelease-injector .
#   docker build -t ratelease-control --target ratelease-control .
#   docker build -t ratelease-module --target ratelease-module .
#
# Each holds one stripped binary, glibc and CA certificates, has no shell, and does not run as root;
# that of the module holds the library for an Envoy, and a binary that copies it into a volume.
# `--platform linux/amd64` or `linux/arm64` selects the machine that it is for; the compiler runs on
# the builder's own in both cases. docs/operate.md says more, scripts/images tests them.
#
# Images are named by digest, so that the same commit is built on the same ground: the script
# scripts/pin-images asks the registries for newer ones. The binaries carry the list of their crates
# (cargo-auditable): `cargo audit bin`, syft, trivy and grype read it from the image.

# The compiler of rust-toolchain.toml.
FROM --platform=$BUILDPLATFORM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS rust
FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f AS debian

# The manifests, with an empty crate for each: what the dependencies are built from, so that their
# layers are used again until a manifest or the lock file changes.
FROM rust AS manifests
WORKDIR /build
COPY . .
RUN find ./src ./crates -type f ! -name Cargo.toml ! -path '*/src/lib.rs' ! -path '*/src/main.rs' \
        ! -name '*.ld' -delete && \
    find . -type d -empty -delete && \
    find . -name lib.rs -exec truncate --size 0 {} + && \
    for main in $(find . -name main.rs); do echo 'fn main() {}' >$main; done && \
    # Cargo reads no manifest whose benches, and the example among them, it does not find.
    mkdir benches && \
    for bench in load $(sed -n '/^\[\[bench\]\]/{n;s/^name = "\(.*\)"/\1/p}' Cargo.toml); do \
        echo 'fn main() {}' >benches/$bench.rs; \
    done

FROM rust AS toolchain
WORKDIR /build
RUN cargo install --locked cargo-auditable --version 0.7.7

# The target, with its linker, and a C compiler for the allocator and for ring.
FROM toolchain AS target
ARG BUILDARCH
ARG TARGETARCH
RUN case $TARGETARCH in \
        amd64) cpu=x86_64 package=gcc-x86-64-linux-gnu page='' ;; \
        # The allocator has to be built for the largest page that such a kernel may have, 64 KiB.
        arm64) cpu=aarch64 package=gcc-aarch64-linux-gnu \
            page='JEMALLOC_SYS_WITH_LG_PAGE = "16"' ;; \
        *) echo "TARGETARCH=$TARGETARCH: expected amd64 or arm64" >&2 && exit 1 ;; \
    esac && \
    if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
        apt-get update && \
        apt-get install --yes --no-install-recommends $package libc6-dev-$TARGETARCH-cross && \
        rm -rf /var/lib/apt/lists/* && \
        rustup target add $cpu-unknown-linux-gnu; \
    fi && \
    printf '%s\n' '[build]' "target = \"$cpu-unknown-linux-gnu\"" \
        "[target.$cpu-unknown-linux-gnu]" "linker = \"$cpu-linux-gnu-gcc\"" \
        '[env]' "$page" >>"$CARGO_HOME/config.toml"
# Packs the relocations of the binary, a thirtieth of its size: glibc loads that from 2.36 on, which
# Debian 12 has. And lays the functions of a start together, which saves memory
# (docs/design.md). Cargo does not strip a package that overrides its profile, as the sidecar's
# does: that is stripped below.
ENV RUSTFLAGS="-C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,-T,/build/src/startup.ld" \
    CARGO_PROFILE_DIST_STRIP=symbols

# The sidecar and the tools are built apart, so that neither enables features of crates in the other.
FROM target AS sidecar-dependencies
COPY --from=manifests /build/ ./
RUN cargo auditable build --profile dist --locked --package ratelease

FROM sidecar-dependencies AS sidecar
COPY . .
# The source may be older than the empty crates that were built in its place.
RUN find src crates -name '*.rs' -exec touch {} + && \
    cargo auditable build --profile dist --locked --package ratelease && \
    mkdir /out && cp target/*/dist/ratelease /out/ && \
    # The reference's manifests run `/bin/ratelimit`. By that name the defaults are the reference's,
    # such as all interfaces for gRPC (the debug port is on loopback).
    ln -s ratelease /out/ratelimit
RUN "$(cd target && echo *-linux-gnu | cut -d - -f 1)-linux-gnu-strip" /out/ratelease

# On top of the sidecar's, most of which they share.
FROM sidecar-dependencies AS tools-dependencies
RUN cargo auditable build --profile dist --locked --package ratelease-ctl --bin ratectl

FROM tools-dependencies AS tools
COPY . .
RUN find src crates -name '*.rs' -exec touch {} + && \
    cargo auditable build --profile dist --locked --package ratelease-ctl --bin ratectl && \
    mkdir /out && cp target/*/dist/ratectl /out/

# On top of the sidecar's, for the client of the API server.
FROM sidecar-dependencies AS injector-dependencies
RUN cargo auditable build --profile dist --locked --package ratelease-injector

FROM injector-dependencies AS injector
COPY . .
RUN find src crates -name '*.rs' -exec touch {} + && \
    cargo auditable build --profile dist --locked --package ratelease-injector && \
    mkdir /out && cp target/*/dist/ratelease-injector /out/

# On top of the sidecar's, for the clients of the databases.
FROM sidecar-dependencies AS control-dependencies
RUN cargo auditable build --profile dist --locked --package ratelease-control

FROM control-dependencies AS control
COPY . .
RUN find src crates -name '*.rs' -exec touch {} + && \
    cargo auditable build --profile dist --locked --package ratelease-control && \
    mkdir /out && cp target/*/dist/ratelease-control /out/

# The engine inside Envoy, linked for images that are older than this one.
FROM sidecar-dependencies AS module
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && \
    rm -rf /var/lib/apt/lists/*
COPY . .
RUN find src crates -name '*.rs' -exec touch {} + && \
    target=$(sed -n 's/^target = "\(.*\)"/\1/p' "$CARGO_HOME/config.toml") && \
    mkdir /out && cp "$(scripts/module --target "$target")" /out/ && \
    cargo auditable build --profile dist --locked --package ratelease-envoy-module \
        --bin install-module && \
    cp target/$target/dist/install-module /bin-out

# What the programs need of Debian: glibc, libgcc_s, the CA certificates, names of users, and the
# description of these packages, by which scanners know them. The rest of that image, most of it
# OpenSSL and conversions of character sets, is larger than the sidecar.
FROM rust AS files
COPY --from=debian / /debian/
WORKDIR /debian
RUN mkdir /files && cp --archive --parents etc tmp usr/lib/os-release /files/ && \
    for file in lib64/ld-linux* lib/ld-linux* lib/*-linux-gnu/ld-linux* \
            lib/*-linux-gnu/libc.so.6 lib/*-linux-gnu/libm.so.6 lib/*-linux-gnu/libgcc_s.so.1 \
            var/lib/dpkg/status.d/base-files* var/lib/dpkg/status.d/ca-certificates* \
            var/lib/dpkg/status.d/libc6* var/lib/dpkg/status.d/libgcc-s1*; do \
        if [ -e $file ] || [ -L $file ]; then cp --archive --parents $file /files/; fi; \
    done

FROM scratch AS base
COPY --from=files /files/ /
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# nobody: the number that the reference's deployments ask for.
USER 65534:65534

FROM base AS ratectl
LABEL org.opencontainers.image.title="ratectl" \
    org.opencontainers.image.description="Tools for the rate limits of ratelease"
COPY --from=tools /out/ /bin/
ENTRYPOINT ["/bin/ratectl"]

FROM base AS ratelease-injector
LABEL org.opencontainers.image.title="ratelease-injector" \
    org.opencontainers.image.description="Adds the ratelease sidecar to pods"
COPY --from=injector /out/ /bin/
EXPOSE 8443
ENTRYPOINT ["/bin/ratelease-injector"]

FROM base AS ratelease-control
LABEL org.opencontainers.image.title="ratelease-control" \
    org.opencontainers.image.description="Keeps the rules of ratelease, and pushes them to pods"
COPY --from=control /out/ /bin/
# API, pods
EXPOSE 8090 18000
ENTRYPOINT ["/bin/ratelease-control"]
CMD ["serve"]

FROM base AS ratelease-module
LABEL org.opencontainers.image.title="ratelease-module" \
    org.opencontainers.image.description="The engine of ratelease as a module of Envoy"
COPY --from=module /out/ /opt/
COPY --from=module /bin-out /bin/install-module
ENTRYPOINT ["/bin/install-module"]

FROM base AS ratelease
LABEL org.opencontainers.image.title="ratelease" \
    org.opencontainers.image.description="A per-pod rate limit sidecar for Envoy"
COPY --from=sidecar /out/ /bin/
# HTTP, gRPC, debug
EXPOSE 8080 8081 6070
# Probes of Kubernetes are HTTP (`/readyz` on 8080) or gRPC health on 8081 in its place.
HEALTHCHECK --interval=5s --timeout=2s --start-period=30s --retries=3 \
    CMD ["/bin/ratelease", "health"]
CMD ["/bin/ratelimit"]
