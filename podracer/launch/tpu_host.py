"""Shell commands for each host of a slice of Cloud TPU VMs."""

import shlex

ENVIRONMENT = "~/.podracer"  # the hosts' own Python is too old
# https://cloud.google.com/storage/docs/cloud-storage-fuse/install
PACKAGES = "https://packages.cloud.google.com/apt"
KEY = "/usr/share/keyrings/cloud.google.asc"


def installing(requirement: str) -> str:
    """Installs uv, which brings a Python, then JAX for TPUs and `requirement`: podracer."""
    opengl = f"{_apt('libegl1 libopengl0')} && " if "envpool" in requirement else ""
    return (
        f"{opengl}python3 -m pip install --quiet --user uv"
        f" && ~/.local/bin/uv venv --quiet --python 3.12 {ENVIRONMENT}"
        f" && ~/.local/bin/uv pip install --quiet --python {ENVIRONMENT}/bin/python"
        f' "jax[tpu]" {shlex.quote(requirement)}'
    )


def mounting(bucket: str, name: str) -> str:
    """Mounts a bucket as the folder `name`; all hosts see at once what one writes."""
    source = f"deb [signed-by={KEY}] {PACKAGES} gcsfuse-$(lsb_release -cs) main"
    folder, bucket = shlex.quote(name), shlex.quote(bucket)
    return (
        f"curl -fsS {PACKAGES}/doc/apt-key.gpg | sudo tee {KEY} > /dev/null"
        f' && echo "{source}" | sudo tee /etc/apt/sources.list.d/gcsfuse.list'
        f" && {_apt('gcsfuse')}"
        f" && mkdir -p {folder} && gcsfuse --implicit-dirs --rename-dir-limit=100000"
        f" --metadata-cache-ttl-secs=0 {bucket} {folder}"
    )


def running(name: str, text: str, hosts: bool) -> str:
    """Runs the command `text` in the folder `name` and logs its output there.

    With several hosts JAX must be asked to detect them (`parallel.hosts`).
    """
    folder, detect = shlex.quote(name), " PODRACER_HOSTS=detect" if hosts else ""
    return (
        f"mkdir -p {folder} && cd {folder}"
        f" && export PATH={ENVIRONMENT}/bin:$PATH{detect} && set -o pipefail"
        f" && {{ {text}; }} 2>&1 | tee -a log-$HOSTNAME.txt"
    )


def _apt(packages: str) -> str:
    """Installs packages of the system."""
    wait = "-o DPkg::Lock::Timeout=300"  # the host may still be setting itself up
    return f"sudo apt-get update -qq && sudo apt-get install -qq {wait} {packages}"
