# Two stages: the first builds the package of Debian 12 from this clone, the second has only it, what it needs, and what
# it loads when it signs or asks an engine.
#   docker build -t ingot .
#   docker run --rm -v /models:/models ingot convert /models/DeepSeek-V3.2 /models/V3.2-nvfp4 --to nvfp4 --for vllm
FROM debian:12 AS build
# git tells the commit, whose date the package has; Debian's packages are those of the day.
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -q -y --no-install-recommends git ca-certificates
WORKDIR /ingot
COPY scripts/deps.sh scripts/
RUN scripts/deps.sh --build
COPY . .
RUN git config --global --add safe.directory /ingot && scripts/build.sh release ingot_cli ingot_shared
RUN scripts/package.sh build/release /packages deb

FROM debian:12-slim
RUN --mount=from=build,source=/packages,target=/packages \
    apt-get update -q && apt-get install -q -y --no-install-recommends /packages/ingot_*.deb libssl3 libcurl4 && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["ingot"]
CMD ["help"]
