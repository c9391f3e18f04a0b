#!/bin/sh
# demo.sh BIN_DIR - generates text from the trained model in examples/models with a quarter of its
# experts resident, then with all of them, then from a pack of it through compressed tiers, and shows
# that the outputs are the same.
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
same_logits() { # same_logits NAME WHAT
    if cmp -s "$out/100% lru.f32" "$out/$1.f32"; then
        echo "  $2: bit-identical to full residency"
    else
        echo "  $2: DIFFERENT from full residency"
        exit 1
    fi
}
same_logits '25% lru' '25% lru'
same_logits '12.5% lfu' '12.5% lfu'

echo
echo "Packed, its experts take two thirds of the bytes:"
"$bin/moepage-pack" "$model" "$out/tiny.moepack" --verify 2>/dev/null | sed 's/^/  /'
"$bin/moepage-generate" "$@" --model "$out/tiny.moepack" --tiers 15:25:60 --host-tier 4M --json \
    --logits-out "$out/tiers.f32" >/dev/null
same_logits tiers 'from the pack, 15 % in slots, 25 % compressed, a host tier of 4 MB'
