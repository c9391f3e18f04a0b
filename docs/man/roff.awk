# Text of comments as roff.

function out(line) { print line >page }

# A literal string inside a text line.
function escape(s) {
    gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); gsub(/\^/, "\\(ha", s); gsub(/~/, "\\(ti", s)
    return s
}

# A literal string as an argument of a macro.
function quote(s) {
    s = escape(s); gsub(/"/, "\\(dq", s)
    return "\"" s "\""
}

# Prose: names are set in bold or italics; a minus sign is one, a hyphen stays a hyphen.
function inline(s,    done, word, plain) {
    done = ""
    while (match(s, /`[^`]*`|MOEPAGE_[A-Z0-9_]+\*?|moepage_[a-z0-9_]+(\.[a-z_]+)?/)) {
        plain = substr(s, 1, RSTART - 1); word = substr(s, RSTART, RLENGTH)
        s = substr(s, RSTART + RLENGTH)
        done = done text_of(plain) name_of(word)
        if (is_function[word] && s ~ /^\(\)/) s = substr(s, 3)
    }
    return done text_of(s)
}

function text_of(s) {
    gsub(/\\/, "\\e", s); gsub(/\^/, "\\(ha", s); gsub(/~/, "\\(ti", s)
    gsub(/ -1/, " \\-1", s); gsub(/\(-1/, "(\\-1", s); gsub(/->/, "\\->", s)
    return s
}

function name_of(word) {
    if (word ~ /^`/) return "\\fI" escape(substr(word, 2, length(word) - 2)) "\\fP"
    if (word ~ /^M/) return "\\fB" escape(word) "\\fP"
    return is_function[word] ? "\\fB" word "\\fP(3)" : "\\fI" escape(word) "\\fP"
}

# A line of text that roff must not take for a request.
function text_line(s) {
    s = inline(s); if (s ~ /^[.']/) s = "\\&" s
    out(s)
}

# A comment as paragraphs. Lines that are set in are kept as they are, those with a dash are a list.
function paragraphs(text,    n, line, i, s, state, next_state) {
    n = split(text, line, "\n"); state = "fresh"
    for (i = 1; i <= n; i++) {
        s = line[i]
        if (s == "" && (state == "kept" && line[i + 1] ~ /^  /)) { out("\\&"); continue }
        if (s ~ /^ +- /) next_state = "item"
        else if (s ~ /^    / && (state == "item" || state == "list")) next_state = "list"
        else next_state = s ~ /^  / ? "kept" : s == "" ? "gap" : "text"
        if (state == "kept" && next_state != "kept") { out(".fi"); out(".RE") }
        if (next_state == "text" && state !~ /^(text|fresh)$/) out(".PP")
        if (next_state == "kept" && state != "kept") {
            if (state != "fresh") out(".PP"); out(".RS 2"); out(".nf") }
        if (next_state == "item") { out(".IP \\(bu 2"); sub(/^ +- /, "", s) }
        state = next_state
        if (state == "kept") out((s ~ /^[.\']/ ? "\\&" : "") escape(s))
        else if (state != "gap") { sub(/^ +/, "", s); text_line(s) }
    }
    if (state == "kept") { out(".fi"); out(".RE") }
}

# A tagged paragraph whose tag is "LEAD NAME".
function tagged(lead, name, text) {
    out(".TP")
    out(lead == "" ? ".B " quote(name) : ".BI " quote(lead) " " quote(name))
    if (text == "") out("\\&"); else text_line(text)
}
