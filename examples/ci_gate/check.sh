#!/bin/sh
# check.sh MODEL: what a build calls. On the main branch the profile of MODEL becomes the baseline; on any other branch
# the build fails when MODEL is slower than the baseline by more than TOLERANCE, confirmed by measuring both again.
set -eu
model=$1
run_of() { python3 -c 'import json, sys; print(json.load(sys.stdin)["run"])'; }

compiled=$(embedl-hub compile onnxruntime "$model" --json | run_of)
if [ "${BRANCH:-}" = main ]; then
    embedl-hub profile onnxruntime "$compiled" --tag stage=main
else
    profile=$(embedl-hub profile onnxruntime "$compiled" --json | run_of)
    embedl-hub gate "$profile" --baseline stage=main --tolerance "${TOLERANCE:-5%}" \
        --most-pairs "${MOST_PAIRS:-30}" --junit gate.xml
fi
