#!/bin/sh
# What tests/sass counts in a few lines of SASS, and which changes of a figure it calls worse.
set -u
. tests/support/tap.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tab=$(printf '\t')

cat >"$scratch/sass" <<END
${tab}code for sm_90
${tab}${tab}Function : mp_gpu_rows
        /*0000*/                   LDG.E.64 R2, desc[UR4][R2.64] ;    /* 0x0 */
        /*0010*/              @!P0 BRA 0x90 ;                         /* 0x0 */
        /*0020*/                   LDG.E.NA.128.CONSTANT R4, [R2] ;   /* 0x0 */
        /*0030*/                   NOP ;                              /* 0x0 */
        /*0040*/                   LDG.E.U16 R8, [R2] ;               /* 0x0 */
        /*0050*/               @P1 BRA 0x20 ;                         /* 0x0 */
        /*0060*/                   STL [R1], R4 ;                     /* 0x0 */
        /*0070*/               @P2 BRA 0x0 ;                          /* 0x0 */
        /*0080*/                   MEMBAR.SC.SYS ;                    /* 0x0 */
        /*0090*/                   LD.E.STRONG.SYS R8, [R2] ;         /* 0x0 */
        /*00a0*/                   CCTL.IVALL ;                       /* 0x0 */
        /*00b0*/                   NANOSLEEP 0x64 ;                   /* 0x0 */
        /*00c0*/               @P0 BRA 0x90 ;                         /* 0x0 */
        /*00d0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;      /* 0x0 */
        /*00e0*/                   ST.E.STRONG.SYS [R2], R5 ;         /* 0x0 */
        /*00f0*/                   EXIT ;                             /* 0x0 */
arch = sm_90
 Function mp_gpu_rows:
  REG:100 STACK:16 SHARED:1024 LOCAL:0
END
# 104 registers in pieces: 2 blocks of 256 threads; 10 KiB in all would leave room for 22.
echo "rows 256 9216" >"$scratch/entries"
sort >"$scratch/wanted" <<END
90 rows instructions 15
90 rows loop 3
90 rows loop_loaded 18
90 rows loop_narrowest 2
90 rows loop_streamed 16
90 rows local 1
90 rows barriers 1
90 rows fences 1
90 rows forgets 1
90 rows shown 1
90 rows loop_forgets 1
90 rows registers 100
90 rows blocks 2
90 rows stack 16
END
counts() {
    awk -v entries="$scratch/entries" -f tests/sass/count.awk "$scratch/sass" | sort >"$scratch/found"
    diff "$scratch/wanted" "$scratch/found"
}
# after SED_SCRIPT: what compare.awk says of figures that have changed so.
after() {
    sed "$1" "$scratch/wanted" >"$scratch/changed"
    awk -f tests/sass/compare.awk "$scratch/wanted" "$scratch/changed"
}
finds_worse() {
    for change in 's/loop 3/loop 4/' 's/loop_narrowest 2/loop_narrowest 1/' 's/loop_streamed 16/loop_streamed 8/' \
        's/local 1/local 2/' 's/stack 16/stack 24/' 's/blocks 2/blocks 1/' 's/fences 1/fences 2/' \
        's/barriers 1/barriers 2/' 's/loop_forgets 1/loop_forgets 2/' 's/shown 1/shown 2/' '/stack/d' \
        's/90 rows blocks/90 more blocks/'; do
        ! after "$change" >"$scratch/said" || { echo "$change: not found"; return 1; }
        grep -q recorded "$scratch/said" || { echo "$change: not named"; return 1; }
    done
}
lets_pass() {
    for change in 's/registers 100/registers 104/' 's/instructions 15/instructions 99/' 's/loop 3/loop 2/' \
        's/loop 3/loop 6/; s/loop_loaded 18/loop_loaded 36/; s/loop_streamed 16/loop_streamed 32/' 's/blocks 2/blocks 3/'; do
        after "$change" >"$scratch/said" || { cat "$scratch/said"; return 1; }
    done
}

check "instructions, widths, fences and blocks are counted" counts
check "a figure that is worse, or missing, is named" finds_worse
check "what is better, or the toolkit's own business, passes" lets_pass
finish
