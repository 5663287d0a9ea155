# The router in the place of the reference picker: the suite's manifests give flags and no command, and steer the
# picker by a header.
ARG BASE=warmroute/extproc:dev
FROM ${BASE}
ENV EXTPROC_EPP_CONFORMANCE=1
ENTRYPOINT ["python3", "-m", "extproc", "epp"]
