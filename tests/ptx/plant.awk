# The number of the nth line that matches `pattern` in an entry of a file of PTX.
$0 ~ "[.]entry mp_gpu_" entry "[(]" { inside = 1 }
inside && /^}/ { exit }
inside && $0 ~ pattern && ++seen == nth { print NR; exit }
