# The package on a CPU. docs/serving.md has the lines that build the image and run it.
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/fairseq_aggdec
COPY LICENSE README.md pyproject.toml setup.py ./
COPY configs configs
COPY fairseq_aggdec fairseq_aggdec
# The CPU build of PyTorch; that of the usual index has gigabytes of CUDA.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    torch==2.13.0+cpu '.[fairseq,serve,convert]' && useradd --create-home aggdec && mkdir -m 1777 /cache
# What is downloaded, converted and packed by its name: --user has no home in the image.
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
USER aggdec
EXPOSE 8000
CMD ["aggdec", "--help"]
