package spec

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"berth/test/testkit"
)

// beyondSchema returns the broken specs whose mistake no schema can find: it depends on several keys, on arithmetic, or
// on how the file is written.
func beyondSchema() []string {
	return []string{
		"addresses.yaml", "anchors.yaml", "control-character.yaml", "crlf.yaml", "directive.yaml",
		"duplicate-page-size.yaml", "gateway.yaml", "hostname.yaml", "image-file-kind.yaml",
		"image-host-without-command.yaml", "io-twice.yaml", "io-which-disk.yaml", "mac.yaml",
		"memory-forgotten-unit.yaml", "memory-order.yaml", "merge-key.yaml", "name-too-long.yaml",
		"name-upper-case.yaml", "network-names.yaml", "network-none.yaml", "not-utf8.yaml", "position-unicode.yaml",
		"tag.yaml", "two-of-one-name.yaml",
	}
}

func schemaUnderTest(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/schema.golden.json", string(text)+"\n")
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// validate checks the first document of a file against the schema. ok is false if another YAML reader cannot read the
// file.
func validate(t *testing.T, s *jsonschema.Resolved, file string) (ok bool, err error) {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal(read(t, file), &doc); err != nil || doc == nil {
		return false, err
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return false, err
	}
	doc = nil
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return true, s.Validate(doc)
}

func TestSchema(t *testing.T) {
	t.Parallel()
	s := schemaUnderTest(t)
	for _, file := range append(files(t, "testdata/good/*.yaml"), files(t, "../../examples/*.yaml")...) {
		if ok, err := validate(t, s, file); err != nil || !ok {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, file := range files(t, "testdata/broken/*.yaml") {
		ok, err := validate(t, s, file)
		name := filepath.Base(file)
		if got, want := ok && err == nil, slices.Contains(beyondSchema(), name); got != want {
			t.Errorf("%s: passes the schema %v, want %v", name, got, want)
		}
	}
}
