# The router. `make images` lays ready what is copied here: nothing is run or fetched while this is built, so it
# takes any base that has a python3 of the right version, one without a shell too.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
COPY lib/ /
COPY app/ /
ENV PYTHONPATH=/opt/warmroute/app:/opt/warmroute/lib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 9002 9003 9090
ENTRYPOINT ["python3", "-m", "extproc"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="extproc" \
      org.opencontainers.image.description="Prefix-aware routing for LLM engines behind Envoy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
