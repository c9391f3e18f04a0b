/* An entry's text into instructions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_names.h"

typedef struct parser {
    const char *at;
    uint32_t line, depth;
    ptx_entry *entry;
    ptx_names names;
    struct {
        char label[PTX_NAME];
    } * targets; /* by instruction */
    uint32_t cap_targets;
    char *error;
    size_t error_bytes;
    bool failed;
} parser;

static void fail(parser *p, const char *what, const char *text)
{
    if (!p->failed)
        snprintf(p->error, p->error_bytes, "%s: line %u: %s '%s'", p->entry->name, p->line, what,
                 text);
    p->failed = true;
}

/* ---- Characters and words ---- */

static void skip_space(parser *p)
{
    for (;; p->at++) {
        if (p->at[0] == '/' && p->at[1] == '/')
            p->at += strcspn(p->at, "\n");
        if (*p->at == '\n')
            p->line++;
        if (!*p->at || !strchr(" \t\n\r", *p->at))
            return;
    }
}

static bool take(parser *p, char c)
{
    skip_space(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static void word(parser *p, char out[PTX_NAME])
{
    skip_space(p);
    size_t n = strcspn(p->at, " \t\n\r,;{}[]()<>|+@!");
    if (n && p->at[n - 1] == ':' && (n < 2 || p->at[n - 2] != ':'))
        n--;
    if (n >= PTX_NAME)
        n = PTX_NAME - 1;
    memcpy(out, p->at, n);
    out[n] = 0;
    p->at += n;
    if (!n)
        fail(p, "a word is missing before", (char[]){*p->at, 0});
}

static void skip_statement(parser *p)
{
    while (*p->at && *p->at != ';')
        p->line += *p->at++ == '\n';
    p->at += *p->at == ';';
}

/* ---- Declarations ---- */

static char letter_of(const char *type)
{
    static const struct {
        const char *name;
        char letter;
    } types[] = {{".pred", 'p'}, {".b16", 'h'}, {".u16", 'h'}, {".s16", 'h'},
                 {".b32", 'w'},  {".u32", 'w'}, {".s32", 'w'}, {".f32", 'w'},
                 {".b64", 'x'},  {".u64", 'x'}, {".s64", 'x'}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!strcmp(types[i].name, type))
            return types[i].letter;
    }
    return 0;
}

static void declare(parser *p)
{
    char type[PTX_NAME], name[PTX_NAME];
    word(p, type);
    const char letter = letter_of(type);
    if (!letter)
        fail(p, "registers of an unknown type", type);
    do {
        uint32_t count = 0;
        word(p, name);
        if (take(p, '<')) {
            char *end;
            count = (uint32_t)strtoul(p->at, &end, 10);
            p->at = end;
            if (!take(p, '>'))
                fail(p, "an unknown declaration of", name);
        }
        if (!p->failed)
            ptx_names_declare(&p->names, p->entry, name, letter, count, p->depth);
    } while (take(p, ',') && !p->failed);
    if (!take(p, ';'))
        fail(p, "an unknown declaration of", name);
}

/* .param .align 8 .b8 name[64] */
static void parameters(parser *p)
{
    char text[PTX_NAME];
    while (!take(p, ')') && !p->failed) {
        uint32_t align = 1, element = 0;
        while (word(p, text), text[0] == '.') {
            if (!strcmp(text, ".align"))
                align = (uint32_t)(skip_space(p), strtoul(p->at, (char **)&p->at, 10));
            else if (strcmp(text, ".param"))
                element = (uint32_t)atoi(text + 2) / 8;
        }
        align = align > element ? align : element;
        uint32_t bytes = element, at = p->entry->param_bytes;
        if (take(p, '[')) {
            bytes *= (uint32_t)strtoul(p->at, (char **)&p->at, 10);
            if (!take(p, ']'))
                fail(p, "an unknown parameter", text);
        }
        if (!element || !align)
            fail(p, "an unknown parameter", text);
        at = align ? (at + align - 1) / align * align : at;
        ptx_names_symbol(&p->names, text, 's', PTX_PARAM_BASE + at);
        p->entry->param_bytes = at + bytes;
        take(p, ',');
    }
}

/* ---- Operands ---- */

typedef struct operand {
    char text[PTX_NAME];
    bool address;
    int64_t disp;
} operand;

static void address(parser *p, operand *o)
{
    o->address = true;
    word(p, o->text);
    if (take(p, '+')) {
        char *end;
        skip_space(p);
        o->disp = strtoll(p->at, &end, 0);
        p->at = end;
    }
    if (!take(p, ']'))
        fail(p, "an unknown address of", o->text);
}

static uint32_t operands(parser *p, operand out[PTX_MAX_OPS])
{
    uint32_t n = 0;
    while (!take(p, ';') && !p->failed) {
        if (take(p, ',') || take(p, '|') || take(p, '{') || take(p, '}'))
            continue;
        if (n == PTX_MAX_OPS) {
            fail(p, "too many operands of", out[0].text);
            break;
        }
        out[n] = (operand){.disp = 0};
        if (take(p, '['))
            address(p, &out[n]);
        else
            word(p, out[n].text);
        n++;
    }
    return n;
}

static bool number(const char *text, uint64_t *out)
{
    char *end;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F'))
        *out = strtoull(text + 2, &end, 16);
    else if (text[0] == '-')
        *out = (uint64_t)strtoll(text, &end, 0);
    else
        *out = strtoull(text, &end, 0);
    return *text && !*end;
}

static bool fits(char letter, char wanted)
{
    return letter == wanted || (wanted == 'v' && letter != 'p') ||
           (wanted == 'a' && (letter == 'w' || letter == 'x'));
}

/* Gives the instruction its nth operand; false when it is not of the shape's letter. */
static bool bind(parser *p, ptx_insn *insn, uint32_t n, const operand *o, char wanted, bool written)
{
    ptx_register reg;
    uint64_t value;
    insn->at[n] = 0;
    insn->id[n] = 0;
    if (o->address != (wanted == 'a'))
        return false;
    if (wanted == 't')
        return !strcmp(o->text, "%globaltimer");
    if (wanted == 'l')
        return o->text[0] == '$' || o->text[0] == 'L';
    if (ptx_names_register(&p->names, o->text, &reg)) {
        insn->at[n] = reg.at;
        insn->id[n] = reg.id;
        insn->wide[n] = reg.letter == 'x';
        return fits(reg.letter, wanted);
    }
    const ptx_name *symbol = ptx_names_find(&p->names, o->text, 's');
    if (symbol)
        value = symbol->value;
    else if (!number(o->text, &value))
        return false;
    if (written)
        return false;
    insn->wide[n] = wanted == 'x' || wanted == 'a' || wanted == 'v';
    const char letter = insn->wide[n] ? 'x' : wanted == 'p' ? 'p' : 'w';
    insn->at[n] = ptx_names_constant(p->entry, letter, value);
    return true;
}

static bool bind_all(parser *p, ptx_insn *insn, const char *shape, const operand *ops, uint32_t n)
{
    uint32_t at = 0, addresses = 0;
    bool written = strchr(shape, '=') != NULL;
    insn->n_written = 0;
    for (const char *s = shape; *s; s++) {
        if (*s == '=') {
            insn->n_written = (uint8_t)at;
            written = false;
            continue;
        }
        if (at == n || !bind(p, insn, at, &ops[at], *s, written))
            return false;
        if (*s == 'a' && addresses < 2)
            insn->disp[addresses++] = ops[at].disp;
        at++;
    }
    insn->n_ops = (uint8_t)at;
    return at == n;
}

/* ---- Instructions ---- */

static bool choose_from(parser *p, ptx_insn *insn, const ptx_opcode *rows, const operand *ops,
                        uint32_t n, bool *named)
{
    for (; rows->name; rows++) {
        if (strcmp(rows->name, insn->opcode))
            continue;
        *named = true;
        if (bind_all(p, insn, rows->shape, ops, n)) {
            insn->run = rows->run;
            insn->flow = rows->flow;
            return true;
        }
    }
    return false;
}

/* Loads and stores have a shape for each number of elements: v..=a, av.. */
static bool choose_memory(parser *p, ptx_insn *insn, const operand *ops, uint32_t n, bool *named)
{
    static const char *const loads[] = {0, "v=a", "vv=a", 0, "vvvv=a"};
    static const char *const stores[] = {0, "av", "avv", 0, "avvvv"};
    if (!ptx_memory_opcode(insn))
        return false;
    const bool load = insn->opcode[0] == 'l';
    *named = true;
    insn->run = load ? ptx_op_ld.run : ptx_op_st.run;
    insn->flow = PTX_EFFECT;
    return bind_all(p, insn, (load ? loads : stores)[insn->count], ops, n);
}

static void choose(parser *p, ptx_insn *insn, const operand *ops, uint32_t n)
{
    static const ptx_opcode *const families[] = {ptx_ops_int,   ptx_ops_wide,   ptx_ops_compare,
                                                 ptx_ops_float, ptx_ops_memory, ptx_ops_warp,
                                                 ptx_ops_flow};
    bool named = false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (choose_from(p, insn, families[i], ops, n, &named))
            return;
    }
    if (!choose_memory(p, insn, ops, n, &named))
        fail(p, named ? "operands that are not known of" : "an unknown instruction", insn->opcode);
}

static void guard(parser *p, ptx_insn *insn)
{
    char text[PTX_NAME];
    ptx_register reg;
    if (!take(p, '@'))
        return;
    insn->guard_not = take(p, '!');
    word(p, text);
    if (!ptx_names_register(&p->names, text, &reg) || reg.letter != 'p')
        fail(p, "an unknown guard", text);
    else {
        insn->guard_id = reg.id;
        insn->guard_at = reg.at;
    }
}

static void instruction(parser *p)
{
    ptx_entry *entry = p->entry;
    operand ops[PTX_MAX_OPS] = {{.disp = 0}};
    const uint32_t at = entry->n_insns;
    entry->insns = ptx_more(entry->insns, at, &entry->cap_insns, sizeof *entry->insns);
    p->targets = ptx_more(p->targets, at, &p->cap_targets, sizeof *p->targets);
    ptx_insn *insn = &entry->insns[at];
    memset(insn, 0, sizeof *insn);
    guard(p, insn);
    insn->line = p->line;
    if (p->failed)
        return;
    word(p, insn->opcode);
    const uint32_t n = operands(p, ops);
    if (p->failed)
        return;
    choose(p, insn, ops, n);
    p->targets[at].label[0] = 0;
    entry->constant |= insn->nc;
    entry->talks |= strstr(insn->opcode, ".sys") != NULL;
    if (insn->flow == PTX_BRANCH)
        strcpy(p->targets[at].label, ops[0].text);
    entry->n_insns++;
}

static void label_or_instruction(parser *p)
{
    const char *at = p->at;
    const uint32_t line = p->line;
    char text[PTX_NAME];
    if (*at != '@') {
        word(p, text);
        if (take(p, ':')) {
            ptx_names_symbol(&p->names, text, 'L', p->entry->n_insns);
            return;
        }
        p->at = at;
        p->line = line;
    }
    instruction(p);
}

static void directive(parser *p)
{
    char text[PTX_NAME];
    word(p, text);
    if (!strcmp(text, ".reg"))
        declare(p);
    else if (!strcmp(text, ".pragma"))
        skip_statement(p);
    else
        fail(p, "an unknown directive", text);
}

static void body(parser *p)
{
    p->depth = 1;
    while (p->depth && !p->failed) {
        skip_space(p);
        if (!*p->at)
            fail(p, "no end of", p->entry->name);
        else if (take(p, '{'))
            p->depth++;
        else if (take(p, '}')) {
            if (--p->depth)
                ptx_names_leave(&p->names, p->depth + 1);
        } else if (*p->at == '.')
            directive(p);
        else
            label_or_instruction(p);
    }
}

static void resolve(parser *p)
{
    for (uint32_t i = 0; i < p->entry->n_insns && !p->failed; i++) {
        ptx_insn *insn = &p->entry->insns[i];
        if (insn->flow != PTX_BRANCH)
            continue;
        const ptx_name *label = ptx_names_find(&p->names, p->targets[i].label, 'L');
        p->line = insn->line;
        if (!label || label->value >= p->entry->n_insns)
            fail(p, "a branch to an unknown label", p->targets[i].label);
        else
            insn->target = (uint32_t)label->value;
    }
}

/* ---- The entry ---- */

/* Returns true if a lane could run on behind an entry's last instruction. */
static bool falls_off(const ptx_insn *last)
{
    return last->guard_id || (last->flow != PTX_RETURN && last->flow != PTX_BRANCH);
}

static void begin(parser *p)
{
    ptx_entry *entry = p->entry;
    ptx_register reg;
    entry->n_ids = 1;
    static const char *const special[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"};
    uint32_t *const places[] = {&entry->tid_at, &entry->ntid_at, &entry->ctaid_at,
                                &entry->nctaid_at};
    for (int i = 0; i < 4; i++) {
        ptx_names_declare(&p->names, entry, special[i], 'w', 0, 0);
        ptx_names_register(&p->names, special[i], &reg);
        *places[i] = reg.at;
    }
    ptx_names_symbol(&p->names, "mp_dynamic_shared", 's', PTX_SHARED_BASE);
    if (take(p, '('))
        parameters(p);
    while (*p->at && *p->at != '{')
        p->line += *p->at++ == '\n';
    if (!take(p, '{'))
        fail(p, "no body of", entry->name);
    else
        body(p);
    if (!p->failed && (!entry->n_insns || falls_off(&entry->insns[entry->n_insns - 1])))
        fail(p, "neither a return nor a jump at the end of", entry->name);
    if (!p->failed)
        resolve(p);
}

static const char *find_entry(const char *text, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = text; (at = strstr(at, ".entry ")) != NULL;) {
        at += strlen(".entry ");
        if (!strncmp(at, name, n) && strchr("( \n\t", at[n]))
            return at + n;
    }
    return NULL;
}

ptx_entry *ptx_parse(const char *text, const char *name, char *error, size_t error_bytes)
{
    const char *at = find_entry(text, name);
    if (!at || strlen(name) >= PTX_NAME) {
        snprintf(error, error_bytes, "no entry %s", name);
        return NULL;
    }
    parser p = {.at = at, .line = 1, .error = error, .error_bytes = error_bytes};
    for (const char *c = text; c < at; c++)
        p.line += *c == '\n';
    p.entry = calloc(1, sizeof *p.entry);
    if (!p.entry)
        abort();
    strcpy(p.entry->name, name);
    begin(&p);
    free(p.names.names);
    free(p.targets);
    p.entry->ran = calloc(p.entry->n_insns + 1, sizeof *p.entry->ran);
    if (!p.failed)
        return p.entry;
    ptx_entry_free(p.entry);
    return NULL;
}

void ptx_entry_free(ptx_entry *entry)
{
    if (!entry)
        return;
    free(entry->insns);
    free(entry->constants);
    free(entry->ran);
    free(entry);
}

uint32_t ptx_entry_size(const ptx_entry *entry)
{
    return entry->n_insns;
}

const char *ptx_entry_name(const ptx_entry *entry)
{
    return entry->name;
}

uint32_t ptx_entry_line(const ptx_entry *entry, uint32_t index)
{
    return entry->insns[index].line;
}

const char *ptx_entry_opcode(const ptx_entry *entry, uint32_t index)
{
    return entry->insns[index].opcode;
}

bool ptx_entry_ran(const ptx_entry *entry, uint32_t index)
{
    return entry->ran[index];
}
