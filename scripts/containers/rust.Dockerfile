# Stands in for the image `rust`: the toolchain of this machine, under the paths of that image.
FROM localhost/stand-in/debian:bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends \
        ca-certificates gcc libc6-dev make && \
    rm -rf /var/lib/apt/lists/*
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo \
    PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY rustup /usr/local/cargo/bin/
COPY ca-certificates.crt /etc/ssl/certs/
COPY toolchains /usr/local/rustup/toolchains
ARG TOOLCHAIN
RUN for tool in cargo rustc; do ln -s rustup /usr/local/cargo/bin/$tool; done && \
    printf 'version = "12"\ndefault_toolchain = "%s"\nprofile = "minimal"\n' $TOOLCHAIN \
        >$RUSTUP_HOME/settings.toml && \
    cargo --version
