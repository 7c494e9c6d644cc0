// Command shares prints the shares and rates that tests have kept in NAME.json, each figure with its interval over windows,
// and writes them to NAME.txt.
package main

import (
	"fmt"
	"os"
	"strings"

	"berth/test/shares"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: shares FILE.json…")
		os.Exit(2)
	}
	for _, path := range os.Args[1:] {
		if err := table(path); err != nil {
			fmt.Fprintln(os.Stderr, "shares:", err)
			os.Exit(1)
		}
	}
}

func table(path string) error {
	f, err := shares.Read(path)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("Percent of all windows together (95 % by windows, which were counted before).\n")
	b.WriteString("share: of what all nodes got; rate: of the rate; saturated: of rate or share.\n")
	for _, r := range f.Rows {
		fmt.Fprintf(&b, "\n%s: %s", r.Kind, r.Text())
	}
	fmt.Print(b.String())
	return os.WriteFile(strings.TrimSuffix(path, ".json")+".txt", []byte(b.String()), 0o644)
}
