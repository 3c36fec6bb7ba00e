# Lockstep in a container. docs/install.md has the commands, and what of them was tested.
ARG BASE=python:3.12-slim
FROM ${BASE}

# A C++ compiler for compile=true and Triton; Python where the base has none, as those of CUDA.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && if ! command -v python3; then apt-get install --yes --no-install-recommends python3-dev python3-venv; fi \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/lockstep \
    && useradd --uid 10001 --create-home lockstep \
    && install -d -o lockstep -g lockstep /project /project/outputs
ENV PATH=/opt/lockstep/bin:$PATH

# The large packages first: they are not installed again when only the source changes.
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt /tmp/lockstep/
RUN pip install --no-cache-dir -c /tmp/lockstep/constraints.txt torch torchvision
COPY . /tmp/lockstep
RUN pip install --no-cache-dir -c /tmp/lockstep/constraints.txt '/tmp/lockstep[export,pandas,timm]'

# No VOLUME: it would hide outputs/ of a project that is mounted here.
WORKDIR /project
USER 10001:10001
ENTRYPOINT ["lockstep"]
CMD ["train", "--help"]
