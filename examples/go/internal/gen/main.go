// Command gen writes the two Go files that follow the C ABI field by field, from the ABI's listing
// lib/abi/structs.txt: the structs that the library fills in, and the table that the layout test
// compares with that listing.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// outputs are the generated files, relative to the module's root.
var outputs = map[string]func(*listing) ([]byte, error){
	"infos.go":              infos,
	"internal/abi/table.go": table,
}

func run(root string) error {
	abi, err := readListing(filepath.Join(root, "../../lib/abi/structs.txt"))
	if err != nil {
		return err
	}
	for name, generate := range outputs {
		source, err := generate(abi)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(root, name), source, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The argument is the module's root.
func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}
