/* program.h — makes the main() of a test file one entry of its suite.
 *
 * Included ahead of every tests/<suite>/test_<part>.c, with PROGRAM its name: `int main(void)` there becomes a
 * function of that name, listed in the section from which suite.c takes its programs. */
#ifndef PROGRAM_H
#define PROGRAM_H

typedef struct suite_program {
    const char *name;
    int (*run)(void);
} suite_program;

#define PROGRAM_JOIN(a, b) a##b
#define PROGRAM_NAME(name) PROGRAM_JOIN(name, _main)
#define PROGRAM_TEXT(name) #name
#define PROGRAM_STRING(name) PROGRAM_TEXT(name)

#ifdef PROGRAM
#define main(arguments)                                                              \
    PROGRAM_NAME(PROGRAM)(arguments);                                                \
    static const suite_program suite_entry                                           \
        __attribute__((section("suite_programs"), used)) = {PROGRAM_STRING(PROGRAM), \
                                                            PROGRAM_NAME(PROGRAM)};  \
    int PROGRAM_NAME(PROGRAM)(arguments)
#endif

#endif
