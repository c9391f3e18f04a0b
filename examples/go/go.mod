module moepage

go 1.19
