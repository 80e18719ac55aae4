# syntax=docker/dockerfile:1@sha256:87999aa3d42bdc6bea60565083ee17e86d1f3339802f543c0d03998580f9cb89
# The sidecar's image: the binary, the tools (`ratectl`) and glibc, no shell, not root. Probes are HTTP (`/readyz` on 8080),
# gRPC health on 8081, or `ratelease health`, which asks `/healthcheck` at the environment's PORT.

#
# Images are named by digest, so that the same commit is built on the same ground: scripts/pin-images
# asks the registries for newer ones. The binary carries the list of its crates (cargo-auditable):
# `cargo audit bin`, syft, trivy and grype read it from the image.

# The compiler of rust-toolchain.toml.
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
WORKDIR /build
RUN cargo install --locked cargo-auditable --version 0.7.7
COPY . .
# Packs the relocations of the binary, a thirtieth of its size: glibc loads that from 2.36 on, which Debian 12 has. And
# lays the functions of a start together, which saves memory (docs/decisions/0034).
ENV RUSTFLAGS="-C link-arg=-Wl,-z,pack-relative-relocs -C link-arg=-Wl,-T,/build/src/startup.ld"
# The caches are not part of the image, so the binary is copied out of its own.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo auditable build --profile dist --locked --package ratelease && \
    cargo auditable build --profile dist --locked --package ratelease-ctl --bin ratectl && \
    strip target/dist/ratelease target/dist/ratectl && \
    cp target/dist/ratelease target/dist/ratectl /

FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
COPY --from=build /ratelease /ratectl /bin/
# The reference's manifests run `/bin/ratelimit`. By that name the defaults are the reference's,
# such as all interfaces for gRPC (the debug port is on loopback). A copy, since there is no shell here to make a link with.
COPY --from=build /ratelease /bin/ratelimit
# nobody: the number that the reference's deployments ask for.
USER 65534:65534
# HTTP, gRPC, debug
EXPOSE 8080 8081 6070
HEALTHCHECK --interval=5s --timeout=2s --start-period=30s --retries=3 CMD ["/bin/ratelease", "health"]
CMD ["/bin/ratelimit"]
