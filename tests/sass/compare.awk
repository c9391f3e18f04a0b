# compare.awk KNOWN NEW: prints the figures that are worse than known, or missing on either side; the exit status is 1
# if there are any. With -v better=1 it prints those that have become better, as a comment.
#
# Registers and instructions outside of hot loops are the toolkit's own business. A hot loop's instructions count by
# the byte that it loads.
function is_less_better(name) { return name !~ /^(blocks|loop_narrowest|loop_streamed)/ }
function is_free(name) { return name ~ /^(registers|instructions|loop_loaded|loop_stored|loop_products|loop_lookups)$/ }
function cost(values, key,   at, whole) {
    split(key, at, " ")
    whole = at[1] " " at[2] " loop_loaded"
    return key ~ / loop$/ && values[whole] ? values[key] / values[whole] : values[key]
}
FNR == NR { known[$1 " " $2 " " $3] = $4; next }
{ found[$1 " " $2 " " $3] = $4 }
END {
    for (key in known)
        if (!(key in found) && !better) { print key ": " known[key] " is recorded, and there is none"; bad = 1 }
    for (key in found) {
        split(key, at, " ")
        if (!(key in known)) {
            if (!better) { print key ": " found[key] ", and none is recorded: tests/sass/check.sh --write"; bad = 1 }
            continue
        }
        if (is_free(at[3]))
            continue
        change = cost(found, key) - cost(known, key)
        if (!is_less_better(at[3]))
            change = -change
        if (change > 0 && !better) { print key ": " found[key] ", and " known[key] " is recorded"; bad = 1 }
        if (change < 0 && better)
            print "# better: " key ": " found[key] ", and " known[key] " is recorded: tests/sass/check.sh --write"
    }
    exit bad
}
