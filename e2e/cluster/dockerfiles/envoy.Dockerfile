# The plain Envoy of the wheel, as Envoy Gateway wants its proxy's image: `envoy` on PATH, a user of no rights.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
COPY envoy /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["envoy"]
