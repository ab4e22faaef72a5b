#!/usr/bin/env bash
# Fetches the real libraries that the tests attach to: NCCL (newest, and an old one), Debian
# 13's RCCL with everything it links, PyPI's PyTorch; and Prometheus, unpacked and not installed,
# so that no service of it is started. About 2.7 GB, once.
#
#   tests/fetch_libraries.sh CACHE
#
# CACHE/environment then holds the variables by which the tests find them. Idempotent.
set -euo pipefail
cd "$(dirname "$0")"
[ $# -eq 1 ] || { echo "usage: $0 CACHE" >&2; exit 2; }
mkdir -p "$1"
cache=$(cd "$1" && pwd)
python=/usr/bin/python3
nccl_releases="2.32.3 2.21.5"
torch_release=2.15.0

once() { # name command...: run the command unless it has succeeded before
    local done="$cache/.$1"
    shift
    [ -e "$done" ] && return
    "$@"
    touch "$done"
}

fetch_nccl() { # release
    local to="$cache/nccl-$1"
    rm -rf "$to"
    mkdir -p "$to"
    $python -m venv "$cache/pip"
    "$cache/pip/bin/pip" download -q --no-deps --only-binary :all: \
        --platform manylinux2014_x86_64 --platform manylinux_2_18_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 \
        -d "$to" "nvidia-nccl-cu12==$1"
    (cd "$to" && unzip -q -o -j ./*.whl '*/libnccl.so.2' && rm ./*.whl)
}

fetch_rccl() { # with its own libc: Debian 13's is newer than the host's may be
    local to="$cache/rccl" apt="$cache/rccl-apt" mirror options
    rm -rf "$to" "$apt"
    mkdir -p "$to" "$apt/lists/partial" "$apt/archives/partial"
    : >"$apt/status"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        grep -v security | grep debian | head -n 1 || true)
    [ -n "$mirror" ] || { echo "apt knows no Debian mirror to fetch librccl1 from" >&2; exit 1; }
    echo "deb $mirror trixie main" >"$apt/sources.list"
    options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=-
        -o "Dir::State::Lists=$apt/lists" -o "Dir::State::status=$apt/status"
        -o "Dir::Cache::archives=$apt/archives" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
        -o APT::Sandbox::User=root -o Debug::NoLocking=1)
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install --download-only -y --no-install-recommends librccl1
    local package
    for package in "$apt"/archives/*.deb; do
        dpkg -x "$package" "$to"
    done
    rm -rf "$apt"
}

fetch_prometheus() {
    local to="$cache/prometheus"
    rm -rf "$to"
    mkdir -p "$to"
    # The lists may be missing or old on a machine where every package was there already.
    apt-get update -qq || true
    (cd "$to" && apt-get download -qq -o APT::Sandbox::User=root prometheus &&
        dpkg -x ./*.deb . && rm ./*.deb)
}

fetch_pytorch() {
    local to="$cache/pytorch" lib
    rm -rf "$to"
    $python -m venv "$to"
    "$to/bin/pip" install -q --no-deps "torch==$torch_release" 2>/dev/null
    "$to/bin/pip" install -q typing_extensions sympy networkx jinja2 fsspec filelock numpy 2>/dev/null
    lib=$("$to/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torch/lib
    $python cstubs/cuda_stubs.py "$lib" "$to/cuda"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$to/cuda" "$to/bin/python" >"$to/run"
    chmod +x "$to/run"
    "$to/run" -c 'import torch.distributed as d; assert d.is_gloo_available()'
}

nccl=
for release in $nccl_releases; do
    once "nccl-$release" fetch_nccl "$release"
    nccl+=${nccl:+:}$cache/nccl-$release/libnccl.so.2
done
once rccl fetch_rccl
once prometheus fetch_prometheus
once "pytorch-$torch_release" fetch_pytorch
cat >"$cache/environment" <<EOF
STRAGD_TEST_NCCL="$nccl"
STRAGD_TEST_RCCL="$cache/rccl/usr/lib/x86_64-linux-gnu/librccl.so.1.0"
PATH="$cache/prometheus/usr/bin:\$PATH"
STRAGD_TEST_PYTORCH="$python:$cache/pytorch/run"
EOF
