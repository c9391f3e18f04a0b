# Sourced: finds what reads machine code.
#
# find_tools sets $cuobjdump and $ptxas, or says in $why what is missing. cuobjdump and the nvdisasm that it calls
# are the toolkit's, or PyPI's: then they lie in ${SASS_TOOLS:-/tmp/moepage-sass}, and stay there.

from_pypi() { # from_pypi FOLDER
    mkdir -p "$1" && python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$1" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm &&
        for wheel in "$1"/*.whl; do python3 -m zipfile -e "$wheel" "$1" || return 1; done &&
        chmod +x "$1"/nvidia/*/bin/*
}

find_tools() {
    nvcc=$(command -v "${NVCC:-nvcc}") || { why='no nvcc'; return 1; }
    toolkit=$(dirname "$(readlink -f "$nvcc")")
    PATH=$toolkit:$PATH
    ptxas=$(command -v ptxas) || { why='no ptxas'; return 1; }
    if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
        folder=${SASS_TOOLS:-${TMPDIR:-/tmp}/moepage-sass}
        ls "$folder"/nvidia/*/bin/cuobjdump >/dev/null 2>&1 || from_pypi "$folder" >"$folder.log" 2>&1 ||
            { why='no cuobjdump: neither beside nvcc nor from PyPI'; return 1; }
        PATH=$(dirname "$(ls "$folder"/nvidia/*/bin/cuobjdump | head -1)"):$PATH
    fi
    cuobjdump=$(command -v cuobjdump)
    version=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, V//p')
}
