# Istio's control plane, as its own pilot/docker/Dockerfile.pilot has it.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY pilot-discovery /usr/local/bin/
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/pilot-discovery"]
