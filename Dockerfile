# The package on a CPU: docker build -t fairseq_aggdec . ; docker run -v "$PWD:/data" -w /data fairseq_aggdec \
#     aggdec-generate data-bin --path model.pt
# A service: docker run -p 8000:8000 -v "$PWD:/data" -w /data fairseq_aggdec aggdec serve model.pt data-bin --host 0.0.0.0
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fairseq_aggdec
COPY LICENSE README.md pyproject.toml setup.py ./
COPY configs configs
COPY fairseq_aggdec fairseq_aggdec
# The CPU build of PyTorch, also for the isolated build of fairseq-fixed, which would fetch one with CUDA.
RUN echo torch==2.13.0+cpu > torch.txt && \
    pip install --no-cache-dir torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu && \
    PIP_CONSTRAINT=torch.txt PIP_BUILD_CONSTRAINT=torch.txt CFLAGS="-O1 -g0" \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[serve,convert]' && useradd --create-home aggdec
USER aggdec
EXPOSE 8000
# Of `aggdec serve` on port 8000; nothing else of the image listens.
HEALTHCHECK --start-period=60s CMD python -c \
    'import urllib.request as r; r.urlopen("http://127.0.0.1:8000/health", timeout=5)'
CMD ["aggdec", "--help"]
