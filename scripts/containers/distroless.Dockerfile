# Stands in for images of gcr.io/distroless: Debian's packages, unpacked, without a shell, with the
# description of each package where scanners look for it.
FROM --platform=$BUILDPLATFORM localhost/stand-in/debian:bookworm AS packages
ARG TARGETARCH
RUN dpkg --add-architecture $TARGETARCH && apt-get update
ARG PACKAGES
WORKDIR /packages
RUN for package in $PACKAGES; do \
        apt-get download $package:$TARGETARCH || apt-get download $package:all; \
    done && \
    mkdir -p /root-fs/var/lib/dpkg/status.d && \
    for file in *.deb; do \
        dpkg-deb -x $file /root-fs && \
        dpkg-deb -f $file >/root-fs/var/lib/dpkg/status.d/$(dpkg-deb -f $file Package); \
    done && \
    rm -rf /root-fs/usr/share/doc /root-fs/usr/share/man /root-fs/usr/share/lintian && \
    # The package makes this file when it is installed.
    find /root-fs/usr/share/ca-certificates -name '*.crt' -exec cat {} + >bundle && \
    install -D -m 644 bundle /root-fs/etc/ssl/certs/ca-certificates.crt && \
    printf '%s\n' root:x:0:0:root:/root:/sbin/nologin \
        nobody:x:65534:65534::/nonexistent:/sbin/nologin \
        nonroot:x:65532:65532::/home/nonroot:/sbin/nologin >/root-fs/etc/passwd

FROM scratch
COPY --from=packages /root-fs /
USER 65532
