# A server of the models inside the package, for CPUs.
#
#     docker build -t headrace .
#     docker run -p 8080:8080 -e HEADRACE_API_KEY=secret headrace
#
# Arguments after the image's name take the place of the last line:
#     docker run headrace run "extract a gzipped tar archive"
# Extras of the package: docker build --build-arg EXTRAS=otel,data -t headrace .

FROM python:3.12-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY native native
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# The module needs the C++ library, which the slim image does not have to have.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libstdc++6 \
 && rm -rf /var/lib/apt/lists/*
ARG EXTRAS=
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRAS:+[$EXTRAS]}"
# The user's number is that of deploy/helm; volumes that are mounted at these folders get their owner.
RUN useradd --create-home --uid 1000 headrace \
 && install -d -o headrace -g headrace /home/headrace/.cache /home/headrace/.local/share/headrace \
 && chown headrace:headrace /home/headrace/.local /home/headrace/.local/share
USER headrace
WORKDIR /home/headrace
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["headrace"]
CMD ["serve", "--host", "0.0.0.0"]
