#!/bin/sh
# demo.sh BIN_DIR - generates text from the trained model in examples/models with a quarter of its
# experts resident, then with all of them, and shows that the outputs are the same.
set -eu

bin=$1
here=$(cd "$(dirname "$0")" && pwd)
model=$here/models/tiny-qwen3moe
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

prompt='The function returns '
set -- --model "$model" --max-tokens 200 --temperature 0.6 --top-p 0.9 --seed 1 --prompt "$prompt"

echo "A trained MoE (8 layers of 64 experts, top-8) decodes with 25 % of its experts resident:"
echo
printf '%s' "$prompt"
"$bin/moepage-generate" "$@" --budget 25%
echo
echo "The same with everything resident, and at 12.5 % with LFU; the logits of all three:"
for run in '100% lru' '25% lru' '12.5% lfu'; do
    "$bin/moepage-generate" "$@" --budget "${run% *}" --policy "${run#* }" --json \
        --logits-out "$out/$run.f32" >/dev/null
done
for run in '25% lru' '12.5% lfu'; do
    if cmp -s "$out/100% lru.f32" "$out/$run.f32"; then
        echo "  $run: bit-identical to full residency"
    else
        echo "  $run: DIFFERENT from full residency"
        exit 1
    fi
done
