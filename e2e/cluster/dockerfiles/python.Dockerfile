# As much of python:3.11-slim as the project's images need.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
