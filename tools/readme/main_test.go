package main

import (
	"os"
	"path/filepath"
	"testing"

	"berth/tools/marks"
)

// TestDocuments checks that README's figures and the table of docs/cost.md are what the kept data give.
func TestDocuments(t *testing.T) {
	const root = "../.."
	all, err := places(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		text, err := os.ReadFile(filepath.Join(root, p.file))
		if err != nil {
			t.Fatal(err)
		}
		if want, err := marks.Place(string(text), p.mark, p.text); err != nil || want != string(text) {
			t.Errorf("%s, %s, is not what the data give: make readme (%v)", p.file, p.mark, err)
		}
	}
}
