package server

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the kept copy anew")

// TestOpenAPI compares the document that the routes and types make with the kept copy: a change of the API is seen in a diff.
func TestOpenAPI(t *testing.T) {
	made, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	const kept = "testdata/openapi.json"
	if *update {
		if err := os.WriteFile(kept, append(made, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	had, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(had), made) {
		t.Errorf("%s differs; go test ./internal/site/api/server -run TestOpenAPI -update writes it anew, and git diff shows what changed", kept)
	}
}
