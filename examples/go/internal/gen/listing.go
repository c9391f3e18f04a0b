package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// A field of a C struct: its name, and its type with the array bound, if any, at the end.
type field struct{ name, ctype string }

type cstruct struct {
	name   string
	fields []field
}

// listing is what lib/abi/structs.txt says, in its order.
type listing struct {
	structs   []*cstruct
	types     []string
	constants []string
}

func readListing(path string) (*listing, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	abi := &listing{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) < 2:
			return nil, fmt.Errorf("%s: cannot read %q", path, lines.Text())
		case words[0] == "type":
			abi.types = append(abi.types, words[1])
		case words[0] == "constant":
			abi.constants = append(abi.constants, words[1])
		case words[0] == "struct":
			abi.structs = append(abi.structs, &cstruct{name: words[1]})
		case words[0] == "field":
			last := abi.structs[len(abi.structs)-1]
			_, name, _ := strings.Cut(words[1], ".")
			last.fields = append(last.fields, field{name, strings.Join(words[4:], " ")})
		}
	}
	return abi, lines.Err()
}

func (l *listing) find(name string) *cstruct {
	for _, s := range l.structs {
		if s.name == name {
			return s
		}
	}
	return nil
}
