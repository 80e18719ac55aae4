# syntax=docker/dockerfile:1
# The sidecar's image: the binary and glibc, no shell, not root. Probes are HTTP (`/readyz` on 8080),
# gRPC health on 8081, or `ratelease health`, which asks `/healthcheck` at the environment's PORT.

# The compiler of rust-toolchain.toml.
FROM rust:1.95.0-bookworm AS build
WORKDIR /build
COPY . .
# The caches are not part of the image, so the binary is copied out of its own.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin ratelease && cp target/release/ratelease /ratelease

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /ratelease /bin/ratelease
# The reference's manifests run `/bin/ratelimit`. By that name the defaults are the reference's,
# such as all interfaces. A copy, since there is no shell here to make a link with.
COPY --from=build /ratelease /bin/ratelimit
# nobody: the number that the reference's deployments ask for.
USER 65534:65534
# HTTP, gRPC, debug
EXPOSE 8080 8081 6070
HEALTHCHECK --interval=5s --timeout=2s --start-period=30s --retries=3 CMD ["/bin/ratelease", "health"]
CMD ["/bin/ratelimit"]
