# Stands in for the image `prom/prometheus`.
FROM localhost/stand-in/debian:bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends prometheus wget && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
