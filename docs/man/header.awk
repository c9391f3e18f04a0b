# Reads C headers into tables: sections of functions, structs, enumerations, callbacks and handles,
# each with the comment in front of it.
#
#   function_name[1..functions]; prototype[f], comment[f], section_of[f], header_of[f], leader[f]
#       (the first of functions that are declared without a blank line between them)
#   struct_name[1..structs]; comment[s], fields[s], field_type[s,i], field_name[s,i],
#       field_text[s,i], field_head[s,i] (a comment on a line of its own in front of the field)
#   enums; comment["enum" e], constants[e], constant_name[e,i], constant_value[e,i],
#       constant_text[e,i], constant_head[e,i]
#   callback[name] its type; comment[name]
#   handle[name], comment[name]
#   section_name[1..sections]; prose[section]; about[header]
#   part_name[1..parts]; part_of[section]; prose[part]

FNR == 1 { if (NR > 1) parse(header, text); header = FILENAME; sub(/.*\//, "", header); text = "" }
{ text = text $0 "\n" }
END { parse(header, text); write_pages() }

# The text of a comment: its lines, without what makes them a comment.
function clean(raw) {
    sub(/^\/\*+ ?/, "", raw); sub(/[ \n]*\*+\/$/, "", raw)
    gsub(/\n[ \t]*\*[ ]?/, "\n", raw); sub(/[ \t\n]+$/, "", raw)
    return raw
}

function one_line(raw) {
    gsub(/[ \t\n]+/, " ", raw); gsub(/^ | $/, "", raw)
    return raw
}

# Moves `rest` past `n` characters and returns them.
function take(n,    part) {
    part = substr(rest, 1, n); rest = substr(rest, n + 1)
    return part
}

function parse(name, all,    gap, blank, pending, first) {
    header = name; rest = all; section = part = ""; pending = ""; first = 1
    while (1) {
        match(rest, /^[ \t\n]*/); gap = take(RLENGTH); blank = gsub(/\n/, "", gap) > 1
        if (pending != "" && (blank || rest == "")) { free_standing(pending); pending = "" }
        if (rest == "") return
        if (blank) previous = ""
        if (substr(rest, 1, 2) == "/*") {
            pending = comment_here(); if (first) about[header] = pending
            if (first || pending == "") pending = ""
            first = 0
        } else if (substr(rest, 1, 1) == "#") { macro(directive(), pending); pending = "" }
        else if (rest ~ /^extern|^}/) take(index(rest, "\n") - 1)
        else { declaration(pending); pending = "" }
    }
}

# A comment; "" for one that begins a part or a section.
function comment_here(    raw) {
    raw = take(index(rest, "*/") + 1)
    if (raw ~ /^\/\* ====/) {
        sub(/^\/\* =+ /, "", raw); sub(/ =+ \*\/$/, "", raw)
        part = section = raw; part_name[++parts] = raw
        return ""
    }
    if (raw !~ /^\/\* ----/) return clean(raw)
    sub(/^\/\* -+ /, "", raw); sub(/ -+ \*\/$/, "", raw)
    section = raw; section_name[++sections] = raw; section_header[raw] = header; part_of[raw] = part
    return ""
}

function free_standing(what) {
    prose[section] = prose[section] (prose[section] == "" ? "" : "\n\n") what
}

# A line of the preprocessor's, with those that continue it.
function directive(    line) {
    do line = line take(index(rest, "\n")); while (line ~ /\\\n$/)
    return line
}

function macro(line, what,    word) {
    if (split(line, word, " ") < 3 || word[1] != "#define" || word[2] !~ /^MOEPAGE_/ ||
        word[2] ~ /^MOEPAGE_(VERSION|API)|\(/) return
    enums++; comment["enum" enums] = what; constants[enums] = 1
    constant_name[enums, 1] = word[2]; constant_value[enums, 1] = word[3]
    gsub(/[()]/, "", constant_value[enums, 1])
}

function declaration(what,    raw) {
    if (rest ~ /^typedef struct [a-z_]+ \{/) {
        raw = take(index(rest, "\n} ") + 1); take(index(rest, ";")); structure(raw, what)
    } else if (rest ~ /^enum/) {
        raw = take(index(rest, "};") + 1); enumeration(raw, what)
    } else {
        raw = one_line(take(index(rest, ";"))); sub(/;$/, "", raw)
        if (raw ~ /^MOEPAGE_API /) prototype_of(raw, what)
        else if (raw ~ /\(\*/) {
            match(raw, /moepage_[a-z_]+/)
            remember(substr(raw, RSTART, RLENGTH), what); callback[last] = raw
        } else if (raw ~ /^typedef/) {
            match(raw, /moepage_[a-z_]+$/)
            remember(substr(raw, RSTART, RLENGTH), what); handle[last] = raw
        }
    }
}

function remember(name, what) { last = name; comment[name] = what; section_of[name] = section }

function prototype_of(raw, what,    name) {
    sub(/^MOEPAGE_API /, "", raw); gsub(/struct /, "", raw)
    match(raw, /moepage_[a-z0-9_]+\(/); name = substr(raw, RSTART, RLENGTH - 1)
    remember(name, what); function_name[++functions] = name; is_function[name] = 1
    prototype[name] = raw; header_of[name] = header
    leader[name] = previous == "" ? name : leader[previous]
    if (what == "" && previous != "") shares[name] = 1
    previous = name
}

# ---- what stands between braces ----

# Calls member() for each declaration in `body`, which ends in `stop`, with the comment behind it on
# its line, or, where it has none, with none, and the comment on lines of its own in front.
function members(kind, owner, body, stop,    at, head, text, declared, gap) {
    declared = ""; head = ""; text = ""
    while (1) {
        match(body, /^[ \t\n]*/); gap = substr(body, 1, RLENGTH); body = substr(body, RLENGTH + 1)
        if (substr(body, 1, 2) == "/*") {
            at = index(body, "*/")
            if (declared != "" && gap !~ /\n/) text = comment_text(substr(body, 1, at + 1))
            else {
                if (declared != "") member(kind, owner, declared, head, text)
                declared = text = ""; head = comment_text(substr(body, 1, at + 1))
            }
            body = substr(body, at + 2); continue
        }
        if (declared != "") { member(kind, owner, declared, head, text); head = text = "" }
        if (body == "") return
        at = index(body, stop)
        # A comment in front of the last enumerator's end, which has no comma.
        if (kind == "enum" && match(body, /[ \t\n]*\/\*/) && (at == 0 || RSTART < at)) at = RSTART
        if (at == 0) at = length(body) + 1
        declared = one_line(substr(body, 1, at - 1))
        body = substr(body, substr(body, at, 1) == stop ? at + 1 : at)
    }
}

function comment_text(raw) { return one_line(clean(raw)) }

function member(kind, owner, declared, head, text,    i, name, part) {
    if (kind == "enum") {
        if (text == "" && head !~ /^[a-z]/) { text = head; head = "" }
        i = ++constants[owner]; split(declared, part, / *= */)
        constant_name[owner, i] = part[1]; constant_value[owner, i] = part[2]
        constant_head[owner, i] = head; constant_text[owner, i] = text
        return
    }
    # A sentence in front of a field without a comment is that field's; words are a heading.
    if (text == "" && head !~ /^[a-z]/) { text = head; head = "" }
    i = ++fields[owner]
    match(declared, /[a-z0-9_]+(\[[A-Z_0-9]+\])*$/)
    field_name[owner, i] = substr(declared, RSTART)
    field_type[owner, i] = one_line(substr(declared, 1, RSTART - 1))
    sub(/struct /, "", field_type[owner, i])
    field_head[owner, i] = head; field_text[owner, i] = text
}

function structure(raw, what,    name, body) {
    match(raw, /moepage_[a-z_]+/); name = substr(raw, RSTART, RLENGTH)
    if (previous_kind == "enum") enum_before[name] = "enum" enums
    previous_kind = "struct"
    remember(name, what); struct_name[++structs] = name; is_struct[name] = 1
    body = substr(raw, index(raw, "{") + 1); sub(/\n}$/, "", body)
    members("struct", name, body, ";")
}

function enumeration(raw, what,    body) {
    previous_kind = "enum"
    enums++; comment["enum" enums] = what
    body = substr(raw, index(raw, "{") + 1); sub(/[ \n]*};$/, "", body)
    members("enum", enums, body, ",")
}
