# The pages.

function write_pages(    i, name) {
    read_statuses(); briefs()
    for (i = 1; i <= functions; i++) {
        name = function_name[i]
        page = folder "/man3/" name ".3"
        if (leader[name] != name) out(".so man3/" leader[name] ".3")
        else function_page(name)
        close(page)
    }
    page = folder "/man7/moepage.7"; overview(); close(page)
    for (name in brief) if (!is_function[name]) fail("a brief of no function: " name)
    exit bad
}

function fail(what) { print "man.sh: " what >"/dev/stderr"; bad = 1 }

# ---- what is known of the library ----

# The file of summaries: docs/man/briefs.txt.
function briefs(    line, part) {
    while ((getline line <summaries) > 0)
        if (line !~ /^#/ && split(line, part, "\t") == 2) brief[part[1]] = part[2]
}

# Statuses by the short names that comments use.
function read_statuses(    e, i) {
    for (e = 1; e <= enums; e++)
        for (i = 1; i <= constants[e]; i++)
            if (constant_name[e, i] ~ /^MOEPAGE_E_/) {
                status_enum = e; status[substr(constant_name[e, i], 11)] = i
            }
}

# ---- comments of functions ----

# The thread class that a comment names, with what it adds to it; "" for none.
function class_of(text,    raw) {
    text = one_line(text)
    if (!match(text, /\[(any|one|set-up)\][^.[]*/)) return ""
    raw = substr(text, RSTART, RLENGTH); sub(/, as for all .*/, "", raw); sub(/ +$/, "", raw)
    return raw
}

# The comment without its classes.
function description(text) {
    gsub(/[ \n]*\[capture\]/, "", text)
    sub(/[ \n]*\[(any|one|set-up)\]([,;][^.]*)?\.?/, "", text); sub(/^[ \n]+/, "", text)
    return text
}

# The struct that stands for a function's whole arguments, for comments that are about it.
function argument_struct(name,    n, word, i) {
    n = split(prototype[name], word, /[^a-z0-9_]+/)
    for (i = 2; i <= n; i++) if (is_struct[word[i]]) return word[i]
    return ""
}

function told(name,    text, s) {
    text = description(comment[name])
    if (text == "" && !shares[name] && (s = argument_struct(name)) != "")
        text = comment[s] != "" ? comment[s] : comment[enum_before[s]]
    return text
}

function brief_of(name,    text) {
    if (name in brief) return brief[name]
    text = one_line(told(name)); gsub(/`/, "", text); gsub(/ ?\([^)]*\)/, "", text)
    sub(/[.;:?]( .*)?$/, "", text)
    if (text ~ /^[A-Z][a-z ]/) text = tolower(substr(text, 1, 1)) substr(text, 2)
    if (text == "") fail(name " has no comment")
    return text
}

function thread_text(class,    tail, text) {
    tail = class; sub(/^\[[^]]*\]/, "", tail)
    if (class ~ /^\[any/) text = "Any thread may call it" (tail == "" ? " at any time" : "")
    if (class ~ /^\[one/) text = "One thread at a time may call it, per object"
    if (class ~ /^\[set/) text = "Set-up: one thread at a time per object, and not while a step is " \
                                 "open on a session that uses the object"
    return text tail "."
}

# ---- a function's page ----

function title(name, volume) {
    out(".\\\" From include/; docs/man writes it.")
    out(".TH " name " " volume " \"\" \"libmoepage\" \"libmoepage\"")
}

# The functions that share a page.
function group_of(name,    i) {
    group_size = 0
    for (i = 1; i <= functions; i++)
        if (leader[function_name[i]] == name) group[++group_size] = function_name[i]
}

function function_page(name,    i, names) {
    group_of(name)
    for (i = 1; i <= group_size; i++) names = names (i > 1 ? ", " : "") group[i]
    title(name, 3)
    out(".SH NAME"); out(names " \\- " text_of(brief_of(name)))
    out(".SH LIBRARY"); out("libmoepage (\\fI\\-lmoepage\\fP)")
    part_line(part_of[section_of[name]])
    find_types(name); synopsis(name)
    out(".SH DESCRIPTION"); describe()
    structures(); enumerations()
    returns(name); threads(); related(name)
}

# The mark of a page: the part of the header that its functions are in.
function part_line(part) {
    out(".SH PART"); out("\\fB" part "\\fP:"); text_line(prose[part])
}

function synopsis(name,    i) {
    out(".SH SYNOPSIS"); out(".nf"); out(".B #include <" header_of[name] ">")
    for (i = 1; i <= group_size; i++) { out(".PP"); prototype_lines(prototype[group[i]]) }
    for (i = 1; i <= callbacks; i++) { out(".PP"); prototype_lines(callback[needed_callback[i]]) }
    for (i = 1; i <= direct; i++) struct_lines(needed[i])
    out(".fi")
}

# A prototype over as many lines as it takes, parameters in italics.
function prototype_lines(raw,    at, indent, n, part, i, type, param, line, width, piece) {
    match(raw, /^.*(moepage_[a-z0-9_]+|\))\(/); at = RLENGTH
    line = quote(substr(raw, 1, at)); width = at; indent = at < 50 ? at : 8
    raw = substr(raw, at + 1); sub(/\)$/, "", raw); n = split(raw, part, /, */)
    for (i = 1; i <= n; i++) {
        match(part[i], /[a-z0-9_]+$/); param = substr(part[i], RSTART)
        type = substr(part[i], 1, RSTART - 1); if (type == "") { type = param; param = "" }
        piece = type param (i < n ? ", " : ");")
        if (i > 1 && width + length(piece) > 78) {
            out(".BI " line); line = "\"" spaces(indent) "\""; width = indent
            sub(/"$/, type "\"", line)
        } else sub(/"$/, type "\"", line)
        line = line " " (param == "" ? "\"\"" : param) " " (i < n ? "\", \"" : "\");\"")
        width += length(piece)
    }
    out(".BI " line)
}

function spaces(n,    s) { while (n-- > 0) s = s " "; return s }

function struct_lines(s,    i) {
    out(".PP"); out(".B typedef struct " s " {")
    for (i = 1; i <= fields[s]; i++)
        out(".BI \"    " spaced(field_type[s, i]) "\" " quote(field_name[s, i]) " ;")
    out(".B } " s ";")
}

# Structs and callbacks that the group's functions take, and those that these take.
function find_types(name,    i, k, n, word, s) {
    direct = callbacks = needs = 0; split("", wanted)
    for (i = 1; i <= group_size; i++) want(prototype[group[i]])
    direct = needs
    for (i = 1; i <= needs; i++) {
        s = needed[i]
        for (k = 1; k <= fields[s]; k++) want(field_type[s, k])
    }
}

function want(text,    n, word, i) {
    n = split(text, word, /[^a-z0-9_]+/)
    for (i = 1; i <= n; i++) {
        if (word[i] in wanted) continue
        if (is_struct[word[i]]) { needed[++needs] = word[i]; wanted[word[i]] = 1 }
        if (word[i] in callback) { needed_callback[++callbacks] = word[i]; wanted[word[i]] = 1 }
    }
}

function describe(    i, name, what) {
    for (i = 1; i <= group_size; i++) {
        name = group[i]; if (shares[name]) continue
        if (i > 1) { out(".PP"); out("\\fB" name "\\fP():") }
        paragraphs(told(name))
    }
    name = group[1]; what = owner_comment(name)
    if (what != "") { out(".PP"); paragraphs(what) }
    what = prose[section_of[name]]
    if (what != "") { out(".PP"); paragraphs(what) }
    for (i = 1; i <= callbacks; i++) {
        out(".PP"); out("\\fI" needed_callback[i] "\\fP:"); paragraphs(comment[needed_callback[i]]) }
}

# What the header says of the kind of object that the function creates.
function owner_comment(name,    kind) {
    kind = name; if (!sub(/_create$/, "", kind)) return ""
    return kind in handle ? comment[kind] : ""
}

function structures(    i, k, s) {
    if (needs == 0) return
    out(".SH STRUCTURES")
    for (i = 1; i <= needs; i++) {
        s = needed[i]; out(".SS " s)
        if (comment[s] != "" && comment[s] != told(group[1])) paragraphs(comment[s])
        for (k = 1; k <= fields[s]; k++) {
            if (field_head[s, k] != "") { out(".PP"); text_line(field_head[s, k]) }
            tagged(spaced(field_type[s, k]), field_name[s, k], field_meaning(s, k))
        }
    }
}

function spaced(type) { return type ~ /\*$/ ? type : type " " }

function field_meaning(s, k) {
    if (field_text[s, k] != "") return field_text[s, k]
    if (field_name[s, k] == "struct_size") return "sizeof the struct, set by the caller"
    return field_name[s, k] == "reserved" ? "0" : ""
}

# Everything of the page in which a constant may be named.
function page_text(    i, k, s, text) {
    for (i = 1; i <= group_size; i++) text = text " " told(group[i])
    for (i = 1; i <= needs; i++) {
        s = needed[i]; text = text " " comment[s]
        for (k = 1; k <= fields[s]; k++) {
            text = text " " field_text[s, k]
            if (field_name[s, k] ~ /dtype$/) text = text " MOEPAGE_DTYPE_*"
        }
    }
    for (i = 1; i <= callbacks; i++) text = text " " comment[needed_callback[i]]
    return text " " prototype[group[1]]
}

function enumerations(    e, text, begun, first) {
    text = page_text()
    if (text ~ /dtype/) text = text " MOEPAGE_DTYPE_*"
    for (e = 1; e <= enums; e++) {
        if (e == status_enum || !named(e, text)) continue
        first = !begun; if (first) { out(".SH CONSTANTS"); begun = 1 }
        if (comment["enum" e] != "" && comment["enum" e] != told(group[1])) {
            if (!first) out(".PP")
            paragraphs(comment["enum" e]) }
        constant_list(e)
    }
}

# A comment in front of a constant is its own where all have one, else a heading of those that follow.
function constant_list(e,    i, heads) {
    for (i = 1; i <= constants[e]; i++) heads += constant_head[e, i] != ""
    for (i = 1; i <= constants[e]; i++) {
        if (heads < constants[e] && constant_head[e, i] != "") {
            out(".PP"); text_line(constant_head[e, i]) }
        tagged("", constant_name[e, i] " = " constant_value[e, i],
               heads == constants[e] ? constant_head[e, i] : constant_text[e, i])
    }
}

# Does the text name one of the constants, or all of them by a star?
function named(e, text,    i, name, prefix) {
    for (i = 1; i <= constants[e]; i++) {
        name = constant_name[e, i]
        if (match(text, name) && substr(text, RSTART + RLENGTH, 1) !~ /[A-Z0-9_]/) return 1
        prefix = name
        while (sub(/_[A-Z0-9]+$/, "", prefix) && prefix != "MOEPAGE")
            if (index(text, prefix "_*")) return 1
    }
    return 0
}

function returns(name,    n, word, i, text, said, begun) {
    out(".SH RETURN VALUE")
    if (prototype[name] !~ /^moepage_status moepage_/) {
        out("What the description says. It cannot fail in any other way.")
        return
    }
    out("\\fBMOEPAGE_OK\\fP (0), or a negative status; \\fBmoepage_last_error\\fP(3) then holds a sentence")
    out("about it for the calling thread. Unless the description says otherwise, a call that failed has")
    out("changed nothing and written nothing.")
    for (i = 1; i <= group_size; i++) text = text " " told(group[i])
    n = split(text, word, /[^A-Z0-9_]+/)
    for (i = 1; i <= n; i++) {
        sub(/^MOEPAGE_E_/, "", word[i])
        if (!(word[i] in status) || (word[i] in said)) continue
        if (!begun++) { out(".SH ERRORS"); out("Of these the description speaks; others are possible.") }
        said[word[i]] = 1
        tagged("", "MOEPAGE_E_" word[i], constant_text[status_enum, status[word[i]]])
    }
}

# A comment that names no class is of the class of the one before in its section.
function threads(    i, name, class, f) {
    out(".SH THREADS")
    for (i = 1; i <= group_size; i++) {
        name = group[i]; class = class_of(comment[name])
        if (shares[name]) continue
        for (f = 1; class == "" && function_name[f] != name; f++)
            if (section_of[function_name[f]] == section_of[name] &&
                class_of(comment[function_name[f]]) != "") inherited = class_of(comment[function_name[f]])
        if (class == "") class = inherited
        if (class == "") fail(name " has no thread class")
        if (i > 1) { out(".PP"); out("\\fB" name "\\fP():") }
        text_line(thread_text(class))
        if (comment[name] ~ /\[capture\]/)
            text_line("It may be called while its stream is being captured into a CUDA graph.")
    }
}

function related(name,    i, other, list) {
    for (i = 1; i <= functions; i++) {
        other = function_name[i]
        if (leader[other] == other && other != name && section_of[other] == section_of[name])
            list = list "\\fB" other "\\fP(3),\n"
    }
    out(".SH SEE ALSO"); out(list "\\fBmoepage\\fP(7)")
}

# ---- moepage(7) ----

# The sections of one part of the header, with their functions.
function part_functions(part,    i, f, begun) {
    out(".SH " toupper(part)); text_line(prose[part])
    for (i = 1; i <= sections; i++) {
        begun = 0
        for (f = 1; f <= functions && part_of[section_name[i]] == part; f++) {
            if (section_of[function_name[f]] != section_name[i]) continue
            if (!begun) { out(".SS " quote(section_name[i])); begun = 1 }
            out(".TP"); out("\\fB" function_name[f] "\\fP(3)")
            out(text_of(brief_of(leader[function_name[f]])))
        }
    }
}

function overview(    i, h) {
    title("moepage", 7)
    out(".SH NAME"); out("moepage \\- paging for Mixture-of-Experts inference")
    out(".SH LIBRARY"); out("libmoepage (\\fI\\-lmoepage\\fP)")
    out(".SH DESCRIPTION"); paragraphs(without_title(about["moepage.h"]))
    out(".SS moepage_cuda.h"); paragraphs(without_title(about["moepage_cuda.h"]))
    for (i = 1; i <= parts; i++) part_functions(part_name[i])
    out(".SH HANDLES")
    for (h in handle) order[++n_handles] = h
    sort_handles()
    for (i = 1; i <= n_handles; i++) {
        out(".TP"); out(".B " order[i])
        if (comment[order[i]] == "" || order[i] "_create" in is_function) out("\\&")
        else text_line(one_line(comment[order[i]]))
    }
    out(".SH STATUSES")
    for (i = 1; i <= constants[status_enum]; i++)
        tagged("", constant_name[status_enum, i] " = " constant_value[status_enum, i],
               constant_text[status_enum, i])
}

function without_title(text) { sub(/^[^\n]*\n\n?/, "", text); return text }

function sort_handles(    i, k, swap) {
    for (i = 2; i <= n_handles; i++)
        for (k = i; k > 1 && order[k - 1] > order[k]; k--) {
            swap = order[k]; order[k] = order[k - 1]; order[k - 1] = swap }
}
