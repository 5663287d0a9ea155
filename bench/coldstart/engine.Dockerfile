# An engine's image: the simulated engine, and in four layers as many bytes as an engine's libraries have.
ARG BASE=warmroute/extproc:dev
FROM ${BASE}
COPY layers/0 /layers/0
COPY layers/1 /layers/1
COPY layers/2 /layers/2
COPY layers/3 /layers/3
COPY engine.py /engine.py
ENTRYPOINT ["python3", "/engine.py"]
