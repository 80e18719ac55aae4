# Stands in for the image `envoyproxy/envoy`, with a binary of the same version.
FROM localhost/stand-in/debian:bookworm
COPY envoy /usr/local/bin/envoy
CMD ["envoy", "-c", "/etc/envoy/envoy.yaml"]
