# SPDX-License-Identifier: Apache-2.0
# tidemark without CUDA: plans, predictions, reports, and runs on cores.
#
#     docker build -t tidemark .
#     docker run --rm -v "$PWD:/work" tidemark plan qwen2.5-7b --context 64K -o plan.json
FROM debian:12-slim AS build
COPY . /src
WORKDIR /src
RUN ./quickstart packages --yes
RUN autoreconf -fi && mkdir /build && cd /build && /src/configure --prefix=/usr --without-cuda && \
    make -j"$(nproc)" && make install DESTDIR=/installed

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends \
    gnuplot-nox libglpk40 libgomp1 libjansson4 libopenblas0-pthread libsqlite3-0 libyaml-0-2 openmpi-bin && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /installed /
WORKDIR /work
ENTRYPOINT ["tidemark"]
