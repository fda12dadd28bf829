# podracer for the hosts of a cluster, with one kind of accelerator:
#   docker build --tag IMAGE --build-arg ACCELERATOR=tpu .
# ACCELERATOR is an extra of jax: tpu, cuda12 or cuda13. EXTRAS are extras of podracer,
# for example envpool,video. The container runs as root, which owns the device files of a
# TPU, also in the pods of GKE.
FROM python:3.12-slim
ARG ACCELERATOR=tpu
ARG EXTRAS=envpool
WORKDIR /source
# What EnvPool links to and a slim image lacks.
RUN apt-get update -qq && apt-get install -qq --no-install-recommends libegl1 libopengl0 \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE ./
COPY podracer podracer
COPY anakin anakin
COPY sebulba sebulba
COPY envs_jax envs_jax
RUN pip install --no-cache-dir "jax[${ACCELERATOR}]" ".[${EXTRAS}]"
WORKDIR /work
CMD ["podracer"]
