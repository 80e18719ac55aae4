# Stands in for the image `redis`.
FROM localhost/stand-in/debian:bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /data
CMD ["redis-server"]
