# An image that tunes, with all backends, a compiler and the allocators, from the root of the repository:
#   docker build -f examples/docker/tune.Dockerfile -t togi-tune .
#   docker run --user "$(id -u):$(id -g)" -e HOME=/tmp --cpuset-cpus 0-3 -v "$PWD:/work" -v togi-state:/state togi-tune tune model.py:subject --out fast.togi
# Tune under the quota that will serve. A set of cores (--cpuset-cpus) measures steadier than a quota of time (--cpus).
FROM python:3.12-slim
ARG INDEX=
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libc6-dev libjemalloc2 libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} "/source[all,sign]" \
    && rm -rf /source && useradd --create-home tuner && mkdir -m 1777 /state
USER tuner
WORKDIR /work
ENV TOGI_HOME=/state/home TOGI_CACHE=/state/cache
VOLUME /state
ENTRYPOINT ["togi"]
CMD ["doctor"]
