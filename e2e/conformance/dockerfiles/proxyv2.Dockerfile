# Istio's proxy, as its own pilot/docker/Dockerfile.proxyv2 has it, but with the plain Envoy of the wheel.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY envoy_bootstrap_tmpl.json /var/lib/istio/envoy/
COPY envoy pilot-agent /usr/local/bin/
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/pilot-agent"]
