# The image for `submit --kubernetes` (docs/kubernetes.md): docker build -t REGISTRY/dgl:1 . && docker push REGISTRY/dgl:1
FROM python:3.11-slim-bookworm

# Pod 0 logs in to all pods over ssh. The ssh servers run without privileges.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-server openssh-client procps \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*

# The packages change seldom, so they have their own layer.
COPY requirements.lock /src/
RUN pip install --no-cache-dir --no-compile --require-hashes --no-deps -r /src/requirements.lock

COPY pyproject.toml README.md LICENSE /src/
COPY tutorial_lib /src/tutorial_lib
RUN pip install --no-cache-dir --no-deps --no-build-isolation /src
# The root of a pod is read-only, so Python compiles all modules now. A few packages contain templates that are not valid Python.
RUN python -m compileall -q /usr/local/lib/python3.11/site-packages || true

# An ssh server needs its user to have a name and a shell.
RUN useradd --uid 1000 --user-group --create-home --shell /bin/bash course && mkdir /data && chown course: /data
USER 1000
WORKDIR /data
ENTRYPOINT ["python", "-m", "tutorial_lib"]
CMD ["--help"]
