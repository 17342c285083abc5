# An image that serves an artifact, from the root of the repository:
#   docker build -f examples/docker/serve.Dockerfile --build-arg EXTRAS=openvino -t togi-serve .
#   docker run --cpus 2 -p 8000:8000 -v "$PWD/fast.togi:/model/fast.togi:ro" togi-serve
# The artifact is a volume, so one image serves all that its engine runs. Quotas (--cpus, --cpuset-cpus) are looked at
# when the artifact is loaded. On machines without a GPU, INDEX may name an index that has torch's smaller CPU wheels.
FROM python:3.12-slim
ARG EXTRAS=onnx,openvino
ARG INDEX=
WORKDIR /app
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install --no-cache-dir ${INDEX:+--extra-index-url "$INDEX"} "/source[$EXTRAS,sign]" fastapi uvicorn \
    && rm -rf /source && useradd --create-home server
COPY examples/server.py /app/server.py
USER server
ENV ARTIFACT=/model/fast.togi PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
CMD ["uvicorn", "server:app", "--host", "0.0.0.0", "--port", "8000"]
