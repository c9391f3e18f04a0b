#!/bin/sh
# The scripts for a machine with a GPU, on the simulated one: what they run there, how they report it,
# and what they say without a GPU. Out of a pack, as they are carried to such a machine.
set -u
. tests/support/tap.sh
build=${BUILD:-build}
GPU_PROGRAMS=$build/release GPU_TOOLS=$build/bin GPU_LIB=$(pwd)/${LIB:-lib} GPU_SIM_LIB=$build/release/sim
case ${LIB:-lib} in /*) GPU_LIB=$LIB ;; esac
export GPU_PROGRAMS GPU_TOOLS GPU_LIB GPU_SIM_LIB
unset GPU_SIM MP_TEST_DEVICE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pack=$work/pack

says() { # says FILE WORDS...: each on some line
    file=$1; shift
    for words; do
        grep -qF -- "$words" "$file" || { echo "no '$words' in:"; cat "$file"; return 1; }
    done
}
ends_with() { # ends_with STATUS FILE COMMAND...
    wanted=$1 file=$2; shift 2
    "$@" >"$file" 2>&1 </dev/null
    status=$?
    [ "$status" = "$wanted" ] || { echo "exit status $status:"; cat "$file"; return 1; }
}

check "a pack is made" ends_with 0 "$work/made" tests/gpu/pack.sh "$pack"
check "and is no bigger than what is easily carried" test "$(du -sm "$pack" | cut -f1)" -lt 60
check "with what its programs need" sh -c "! env LD_LIBRARY_PATH='$pack/lib' \
    ldd '$pack'/bin/* '$pack'/suites/* '$pack'/tests/gpu/bench_* | grep 'not found'"

# From here on nothing of the tree is used.
unset GPU_PROGRAMS GPU_TOOLS GPU_LIB GPU_SIM_LIB
cd "$work" || exit 1
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    skip "without a GPU both scripts say so" "there is a driver"
else
    check "without a GPU the checks say so" ends_with 77 none ./pack/check.sh results
    check "by name and reason" says none "skipped: gpu-check (cuda:0: " "1 skipped"
    check "and so do the measurements" ends_with 77 none ./pack/bench.sh results
    check "by name and reason too" says none "skipped: gpu-bench (cuda:0: " "1 skipped"
fi

GPU_SIM=1
export GPU_SIM
check "the checks pass" ends_with 0 checked ./pack/check.sh results
check "every part is in the table" says results/check.txt "kernels: quant " "kernels: rows " \
    "kernels: topk " "kernels: remap " "kernels: api " "kernels: experts " "kernels: decode " \
    "device suite " "fast mode, by cuBLAS " "PagedTensor " "paths and graphs " "decode loop, graph " "compute-sanitizer "
check "what was left out is named" says checked "skipped: compute-sanitizer (simulated driver)" \
    "skipped: same bits, pool stress (" "0 failed"
check "the first hour is one command" ends_with 0 said-hour ./pack/first.sh hour
if command -v python3 >/dev/null; then
    check "and one JSON of all that was found" python3 -c '
import json
with open("hour/first.json") as f:
    found = json.load(f)
assert found["simulated"] is True
assert [s["step"] for s in found["steps"]] == "check bench decode-graph decode-session paths-unset".split(), found["steps"]
assert all(s["status"] == 0 for s in found["steps"]), found["steps"]
assert sum(c["passed"] for c in found["checks"]) > 100 and not sum(c["failed"] for c in found["checks"])
assert any(c["part"] == "kernels: decode, any stream" for c in found["checks"])
assert len(found["targets"]) == 8 and all(t["value"] is not None for t in found["targets"]), found["targets"]
assert set(found["results"]) == set("info decoder dequant transfer experts residency generation".split())'
fi
# A test that fails, and one that dies.
mv pack/suites/unit kept
cat >pack/suites/unit <<EOF
#!/bin/sh
case \$1 in
test_cuda_rows) printf 'not ok 1 - rows\n1..1\n'; exit 1 ;;
test_cuda_topk) kill -SEGV \$\$ ;;
*) exec $work/kept "\$@" ;;
esac
EOF
chmod +x pack/suites/unit
check "failures are the script's" ends_with 1 failing env GPU_CHECK_SECONDS=4 ./pack/check.sh results
check "and counted" says failing "2 failed" "killed by signal 11"
check "what there was no time for is skipped by name" says failing "no time left of 4 s"

check "a first hour that fails measures nothing" sh -c '
    GPU_CHECK_SECONDS=4 ./pack/first.sh failing-hour >said 2>&1; [ $? = 1 ] &&
        grep -q "\"bench\", \"status\": \"skipped\"" failing-hour/first.json'

check "the measurements run" ends_with 0 measured ./pack/bench.sh results
check "the table says that they mean nothing" says results/targets.txt "simulated: the numbers mean" \
    "decoder, 512 MB" "path in a graph, all resident" "decoding at 25 %, times static offloading"
check "no target lacks its number" sh -c '! grep "not measured" results/targets.txt'
if command -v python3 >/dev/null; then
    check "the results are JSON, and marked as simulated" python3 -c '
import json
for part in "info decoder dequant transfer experts residency generation".split():
    with open(f"results/{part}.json") as f:
        found = json.load(f)
    assert found["simulated"] is True and found["rows"], part
    assert all(r["median"] > 0 or r["case"].startswith("mapping") for r in found["rows"]), part'
    check "comparison with others names what is not there" ends_with 0 peers \
        python3 pack/tests/gpu/peers.py --lib pack/lib --out results/peers.json
    check "in its file as well" says results/peers.json '"skipped"' torch dietgpu dfloat11
else
    skip "the results are JSON" "no python3"
fi
check "a benchmark that fails is the script's failure" sh -c '
    printf "#!/bin/sh\nexit 3\n" >pack/tests/gpu/bench_dequant
    ./pack/bench.sh results dequant >broken 2>&1; [ $? = 1 ] && grep -q "failed: dequant: exit status 3" broken'
finish
