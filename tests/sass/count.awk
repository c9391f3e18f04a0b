# From SASS, as cuobjdump -sass and --dump-resource-usage print it, to figures: "sm entry figure value".
# Wants -v entries=FILE, lines "entry threads shared": a block's threads and the bytes that a launch asks for.
#
# A loop is what lies between a backward branch and its target, without an EXIT; an entry's hot loop is, of the
# loops that have none inside, the one that loads the most bytes of global memory in a turn. The decoder's is the
# shortest that looks up each BF16 element that it stores.
function hex(s,   i, v) {
    for (i = 1; i <= length(s); i++)
        v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
    return v
}
# Bytes of a load or store by its name: LDG.E.NA.128.CONSTANT -> 16.
function width(op) {
    return op ~ /\.128/ ? 16 : op ~ /\.64/ ? 8 : op ~ /[.][US]8/ ? 1 : op ~ /[.][US]16/ ? 2 : 4
}
function figure(name, value) { print sm, entry, name, value }
function least(a, b) { return a < b ? a : b }
function up(n, unit) { return int((n + unit - 1) / unit) * unit }

# Blocks on a multiprocessor of compute capability `at`, from the limits of the CUDA C++ Programming Guide. Registers
# are given to warps in pieces of 256, shared memory to blocks in pieces of 128 bytes and 1 KiB for the system.
function resident(registers, at,   most_threads, most_blocks, memory, warps) {
    most_threads = at == 80 || at == 90 ? 2048 : 1536
    most_blocks = at == 80 || at == 90 ? 32 : 24
    memory = 1024 * (at == 80 ? 164 : at == 90 ? 228 : 100)
    warps = threads[entry] / 32
    return least(least(most_blocks, int(most_threads / threads[entry])),
                 least(int(int(65536 / up(registers * 32, 256)) / warps),
                       int(memory / (up(shared[entry], 128) + 1024))))
}

# Counts instructions [from, to].
function count_loop(from, to,   i) {
    split("", n)
    n["narrowest"] = 99
    for (i = from; i <= to; i++) {
        n["instructions"]++
        n[op[i]]++
        if (op[i] ~ /^(LDG|LD)(\.|$)/) {
            n["loaded"] += width(op[i])
            n["narrowest"] = least(n["narrowest"], width(op[i]))
            if (op[i] ~ /\.NA\./)
                n["streamed"] += width(op[i])
        } else if (op[i] ~ /^(STG|ST)(\.|$)/)
            n["stored"] += width(op[i])
        else if (op[i] ~ /^LDS\.U16/)
            n["lookups"]++
        else if (op[i] ~ /^LDS/)
            n["stage"]++
        else if (op[i] ~ /^HMMA/)
            n["products"]++
        else if (op[i] ~ /^(LOP3|SHF|PRMT|IADD3?|VIADD|SEL|ISETP|VIMNMX|IMNMX|LEA|PLOP3|P2R|BREV|FSETP|FMNMX|FSEL)(\.|$)/)
            n["alu"]++
    }
}

function usage(registers) {
    figure("registers", registers)
    figure("blocks", resident(registers, sm))
    if (sm == 80)
        figure("blocks_89", resident(registers, 89))
}

function finish(   i, j, best, hot, inner, worth) {
    if (!entry)
        return
    for (i = 1; i <= loops; i++) {
        inner = 1
        for (j = 1; j <= loops; j++)
            if (j != i && first[j] >= first[i] && last[j] <= last[i])
                inner = 0
        count_loop(first[i], last[i])
        if (!inner || n["EXIT"] || !n["loaded"])
            continue
        worth = entry != "decode" ? n["loaded"] : n["lookups"] && 2 * n["lookups"] == n["stored"]
        if (worth > best || (worth && worth == best && last[i] - first[i] < last[hot] - first[hot])) {
            best = worth
            hot = i
        }
    }
    figure("instructions", size)
    if (hot) {
        count_loop(first[hot], last[hot])
        figure("loop", n["instructions"])
        figure("loop_loaded", n["loaded"])
        figure("loop_narrowest", n["narrowest"])
        if (n["streamed"])
            figure("loop_streamed", n["streamed"])
        if (n["products"])
            figure("loop_products", n["products"])
        if (n["lookups"]) {
            figure("loop_alu", n["alu"])
            figure("loop_lookups", n["lookups"])
            figure("loop_stage", n["stage"])
            figure("loop_stored", n["stored"])
        }
    }
    figure("local", all["local"] + 0)
    if (all["fence"] || all["shown"]) {
        figure("barriers", all["barrier"] + 0)
        figure("fences", all["fence"] + 0)
        figure("forgets", all["forget"] + 0)
        figure("shown", all["shown"] + 0)
        figure("loop_forgets", all["loop_forget"] + 0)
    }
    entry = ""
}

BEGIN {
    while ((getline line < entries) > 0) {
        split(line, word, " ")
        threads[word[1]] = word[2]
        shared[word[1]] = word[3]
    }
}
/code for sm_|^arch = sm_/ { finish(); sm = $0; sub(/.*sm_/, "", sm); sub(/[^0-9].*/, "", sm) }
/^[ \t]*Function *: / {
    finish()
    entry = $0
    sub(/.*: *mp_gpu_/, "", entry)
    size = loops = 0
    split("", all)
    next
}
/^[ \t]*Function mp_gpu_.*:$/ { finish(); owner = $2; sub(/^mp_gpu_/, "", owner); sub(/:$/, "", owner) }
/ REG:[0-9]+ STACK:/ {
    entry = owner
    for (i = split($0, word, /[ :]+/); i > 0; i--) {
        if (word[i] == "REG") usage(word[i + 1])
        if (word[i] == "STACK") figure("stack", word[i + 1])
    }
    entry = ""
}
entry && /^[ \t]+\/\*[0-9a-f]+\*\/ .*;/ {
    address = $1
    gsub(/[\/*]/, "", address)
    text = $0
    sub(/^[ \t]+\/\*[0-9a-f]+\*\/ +/, "", text)
    sub(/ *;.*/, "", text)
    sub(/^@!?U?P[0-9T]+ +/, "", text)
    name = text
    sub(/ .*/, "", name)
    if (name == "NOP")
        next
    op[++size] = name
    place[size] = hex(address)
    if (name ~ /^(LDL|STL)/) all["local"]++
    if (name ~ /^BAR\.SYNC/) all["barrier"]++
    if (name ~ /^MEMBAR.*SYS/) all["fence"]++
    if (text ~ /^CCTL\.IVALL/) all["forget"]++
    if (name ~ /^ST.*SYS/) all["shown"]++
    if (name ~ /^BRA/ && match(text, /0x[0-9a-f]+$/) && (target = hex(substr(text, RSTART + 2))) < place[size]) {
        last[++loops] = size
        for (first[loops] = size; first[loops] > 1 && place[first[loops] - 1] >= target;)
            first[loops]--
        polling = 0
        for (i = first[loops]; i <= size; i++)
            polling += op[i] == "NANOSLEEP"
        for (i = first[loops]; polling == 1 && i <= size; i++)
            all["loop_forget"] += op[i] == "CCTL.IVALL"
    }
}
END { finish() }
