ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends conntrack iptables kmod \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
COPY kube-proxy /usr/local/bin/
