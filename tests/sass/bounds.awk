# From figures (count.awk) and gpus.txt to the tables of docs/gpu-bounds.md, which explains the models and constants.
#
#   awk -f bounds.awk gpus.txt figures-VERSION.txt
#
# With -v summary=FILE that file has a line for each GPU: TB/s of the decoder, percent of the bandwidth in thin
# experts, microseconds of the path.
BEGIN {
    if (!summary)
        summary = "/dev/null"
    FS = " +"
    # Decoder.
    ratio = 0.668      # bytes of exph for one of BF16
    table_ways = 2.78  # accesses of a warp's look-up among 128 words, 32 banks
    stage_ways = 3.45  # and of its words of the stage
    chain = 190        # clocks from one group of four look-ups to the next
    # Memory, microseconds.
    reached = 0.92     # of the nominal bandwidth
    loaded = 0.8       # a load's latency while the memory is busy
    idle = 0.6         # and while it is not
    l2 = 0.2           # a load from the second-level cache
    after = 0.3        # from an item's last weight to its stores
    # Experts: Qwen3-30B-A3B, one token.
    hidden = 2048; inner = 768; top_k = 8
    warps = 8
    before = 1         # dependent loads before a block's first weight: the expert's entry
    overlapped = 1     # the next item's first weights are under way before an item ends
    # Path, all experts resident.
    trips = 3          # ids and state; the map; the stores at the end
    told = 1 / 48      # of layers tell the host: the last of a step
    starts = 1.0; barrier = 0.02; drain = 0.8
}
/^#/ { next }
FILENAME ~ /gpus/ { gpu[++gpus] = $1; code[gpus] = $2; cc[gpus] = $3; sms[gpus] = $4; clock[gpus] = $5; memory[gpus] = $6; next }
{ f[$1, $2, $3] = $4; if (!($2 in seen)) { seen[$2] = 1; entry[++entries] = $2 } }

function least(a, b) { return a < b ? a : b }
function blocks(g, e) { return f[code[g], e, cc[g] == 89 ? "blocks_89" : "blocks"] }
function three(e, name) { return (f[80, e, name] + 0) " / " (f[90, e, name] + 0) " / " (f[120, e, name] + 0) }
function title(g,   t) { t = gpu[g]; gsub(/_/, " ", t); return t }

function kernels(   i, e) {
    print "| kernel | registers | stack, bytes | blocks on a multiprocessor: 4090 / H100 / 5090 | hot loop: instructions | bytes loaded | narrowest load |"
    print "| --- | --- | --- | --- | --- | --- | --- |"
    for (i = 1; i <= entries; i++) {
        e = entry[i]
        printf "| %s | %s | %s | %s / %s / %s | %s | %s | %s |\n", e, three(e, "registers"), three(e, "stack"),
            f[80, e, "blocks_89"], f[90, e, "blocks"], f[120, e, "blocks"], three(e, "loop"),
            three(e, "loop_loaded"), three(e, "loop_narrowest")
    }
}

# TB/s of BF16 written.
function decode(   g, s, symbols, lanes, issue, alu, shared, chains, dram) {
    print "| GPU | instructions per symbol | issue | integer lanes | shared memory | look-ups in turn | memory | bound |"
    print "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for (g = 1; g <= gpus; g++) {
        s = code[g]
        symbols = f[s, "decode", "loop_stored"] / 2
        lanes = sms[g] * clock[g] * 1e9 * 2 / 1e12 # from symbols per clock and multiprocessor
        issue = lanes * 128 / (f[s, "decode", "loop"] / symbols)
        alu = lanes * 64 / (f[s, "decode", "loop_alu"] / symbols)
        shared = lanes * 32 * symbols / (f[s, "decode", "loop_lookups"] * table_ways + \
            f[s, "decode", "loop_stage"] * stage_ways + (f[s, "decode", "loop_stored"] + f[s, "decode", "loop_loaded"]) / 4)
        chains = lanes * blocks(g, "decode") * 4 * 32 * 4 / chain
        dram = memory[g] * 0.9 / (1 + ratio)
        bound["decode", g] = least(least(issue, alu), least(least(shared, chains), dram))
        printf "| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f TB/s |\n", title(g), f[s, "decode", "loop"] / symbols,
            issue, alu, shared, chains, dram, bound["decode", g]
    }
}

# Microseconds of a launch of `items` items of `bytes`.
function launch(g, items, bytes,   fit, flight, pause, time, left, n) {
    fit = sms[g] * blocks(g, "experts_thin_bf16")
    flight = warps * 32 * f[code[g], "experts_thin_bf16", "loop_streamed"]
    pause = before * l2 + idle + after
    time = pause
    for (left = items; left > 0; left -= n) {
        n = least(left, fit)
        time += n * bytes / least(memory[g] * 1e6 * reached, n * flight / turn(g, n))
        if (left > n && !overlapped)
            time += pause
    }
    return time
}
# From a load's start to the next one in its place: its latency, and the instructions of the multiprocessor's warps,
# while `n` blocks run.
function turn(g, n) {
    return loaded + f[code[g], "experts_thin_bf16", "loop"] / 2 * int((n + sms[g] - 1) / sms[g]) * warps / 4 / clock[g] / 1e3
}

function thin(   g, has, needs, up, down, bytes, all) {
    print "| GPU | bytes under way on a multiprocessor | needed | gate and up, µs | down, µs | of the memory's bandwidth |"
    print "| --- | --- | --- | --- | --- | --- |"
    for (g = 1; g <= gpus; g++) {
        has = blocks(g, "experts_thin_bf16") * warps * 32 * f[code[g], "experts_thin_bf16", "loop_streamed"]
        needs = memory[g] * 1e6 * reached * turn(g, 2 * sms[g]) / sms[g]
        up = launch(g, top_k * inner / 16, 2 * 16 * hidden * 2)
        down = launch(g, top_k * hidden / 32, 2 * 16 * inner * 2)
        all = top_k * 3 * hidden * inner * 2
        bound["thin", g] = 100 * all / (memory[g] * 1e6) / (up + down)
        printf "| %s | %.0f KiB | %.0f KiB | %.1f | %.1f | %.0f %% |\n", title(g), has / 1024, needs / 1024, up, down, bound["thin", g]
    }
}

function path(   g, s) {
    print "| GPU | barriers | fences in the kernel | of them in a layer without a miss | added to a layer, µs |"
    print "| --- | --- | --- | --- | --- |"
    for (g = 1; g <= gpus; g++) {
        s = code[g]
        bound["path", g] = starts + trips * l2 + f[s, "path_plan", "barriers"] * barrier + told * drain
        printf "| %s | %d | %d | 0 | %.1f |\n", title(g), f[s, "path_plan", "barriers"], f[s, "path_plan", "fences"], bound["path", g]
    }
}

END {
    kernels()
    print "\n### Decoder\n"
    decode()
    print "\n### Thin experts\n"
    thin()
    print "\n### Path\n"
    path()
    for (g = 1; g <= gpus; g++)
        print gpu[g], bound["decode", g], bound["thin", g], bound["path", g] >summary
}
