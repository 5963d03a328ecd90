#!/usr/bin/env bash
# Run `tpu` with these arguments, as a step of Cloud Build in a checkout.
#
# An image without `tpu` is set up by the first step, into the checkout, which all steps of a build share.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v tpu >/dev/null; then
  export TPU_CACHE=$PWD/.tpu/cache PULUMI_HOME=$PWD/.tpu/pulumi
  export PATH=$PWD/.venv/bin:$PWD/.venv/libexec:$PATH
  command -v tpu >/dev/null || tools/setup.sh python pulumi plugins
fi
exec tpu "$@"
