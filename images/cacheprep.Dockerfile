# The cache warmer. `make images` lays ready what is copied here; see extproc.Dockerfile.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
# Static: it is run inside other images, which a pod keeps on its node.
COPY bin/ /
COPY lib/ /
COPY app/ /
ENV PYTHONPATH=/opt/warmroute/app:/opt/warmroute/lib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["python3", "-m", "cacheprep"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="cacheprep" \
      org.opencontainers.image.description="Model weights and images on a node before the pod that needs them" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
