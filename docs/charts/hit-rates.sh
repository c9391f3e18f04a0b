#!/bin/sh
# Draws hit rates over cache size as SVG, from the table "What they are worth" of docs/adding-a-policy.md:
#   docs/charts/hit-rates.sh > docs/charts/hit-rates.svg
set -eu
cd "$(dirname "$0")/.."
LC_ALL=C awk -F'|' '
    function x(percent) { return 60 + (percent - 12.5) / 62.5 * 440 }
    function y(percent) { return 300 - percent / 100 * 260 }
    function text(at_x, at_y, anchor, colour, what) {
        printf "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", \
            at_x, at_y, anchor, colour, what
    }
    BEGIN {
        colours["lru"] = "#7a7a7a"; colours["lirs"] = "#b07aa1"
        colours["cycle"] = "#d1495b"; colours["belady"] = "#30638e"
        names["lru"] = "LRU (default)"; names["lirs"] = "LIRS"
        names["cycle"] = "cycle"; names["belady"] = "Belady, the bound"
        print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 350\" width=\"640\"" \
            " font-family=\"sans-serif\" font-size=\"13\">"
        print "<title>Hit rate over the share of experts resident, real routes of gpt-oss-20b</title>"
        print "<rect width=\"640\" height=\"350\" fill=\"#ffffff\"/>"
        for (percent = 0; percent <= 100; percent += 20) {
            printf "<path d=\"M60 %.0fH500\" stroke=\"#e0e0e0\"/>\n", y(percent)
            text(52, y(percent) + 5, "end", "#333333", percent " %")
        }
        text(60, 24, "start", "#333333", "hits, gpt-oss-20b routes")
        text(280, 342, "middle", "#333333", "experts resident")
    }
    /^\| resident / {
        columns = NF - 3
        for (i = 1; i <= columns; i++) {
            share[i] = $(i + 2) + 0
            text(x(share[i]), 322, "middle", "#333333", share[i] " %")
        }
    }
    /^\| (lru|lirs|belady, the bound|\*\*cycle\*\*) \|/ && columns {
        policy = $2; gsub(/[* ]|,.*/, "", policy)
        path = ""
        for (i = 1; i <= columns; i++) {
            value = $(i + 2); gsub(/[* ]/, "", value)
            hits[i] = value + 0
            path = path sprintf("%s%.1f %.1f", i == 1 ? "M" : "L", x(share[i]), y(hits[i]))
        }
        printf "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2.5\"/>\n", path, colours[policy]
        for (i = 1; i <= columns; i++)
            printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", \
                x(share[i]), y(hits[i]), colours[policy]
        place[++drawn] = policy; quarter[policy] = hits[2]
    }
    END {
        if (drawn != 4) exit 1
        for (i = 1; i <= drawn; i++) {
            printf "<path d=\"M350 %dH374\" stroke=\"%s\" stroke-width=\"2.5\"/>\n", \
                270 - 20 * i, colours[place[i]]
            text(382, 274 - 20 * i, "start", "#333333", \
                sprintf("%s: %.1f %% at 25 %%", names[place[i]], quarter[place[i]]))
        }
        print "</svg>"
    }' adding-a-policy.md
