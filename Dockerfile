# The package on a CPU: docker build -t fairseq_aggdec . ; docker run -v "$PWD:/data" -w /data fairseq_aggdec \
#     aggdec-generate data-bin --path model.pt
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
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[lattice,report]'
CMD ["aggdec", "--help"]
