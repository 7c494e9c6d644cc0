package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/sys/refuse"
)

// size is a type that parses its own text.
type size int

func (s *size) UnmarshalText(text []byte) error { return fmt.Errorf("%q is not a size", text) }

func TestRead(t *testing.T) {
	t.Parallel()
	f := File{Path: filepath.Join(t.TempDir(), "spec.json"), Is: "the spec of node a", Remedy: "mend it"}
	type inner struct {
		N int       `json:"n"`
		T time.Time `json:"t"`
		L []string  `json:"l"`
		S size
	}
	var v struct {
		In inner `json:"in"`
	}
	if err := f.Read(&v); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for text, want := range map[string]string{
		"":                           "it is empty",
		" \n":                        "it is empty",
		"\x00\x00\x00":               "it holds nothing but zero bytes, as after a power failure",
		`{"in": {"n"`:                "it ends in the middle",
		"x":                          "it is not JSON from line 1, byte 1 on",
		`{"in": tru`:                 "it ends in the middle",
		"{\n\"in\": x}":              "it is not JSON from line 2, byte 7 on",
		`{"in": {"n": "x"}}`:         "in.n at line 1, byte 16 is text where something else belongs",
		`{"in": {"n": 1.5}}`:         "in.n at line 1, byte 16 is a number where something else belongs",
		`{"in": {"l": {}}}`:          "in.l at line 1, byte 14 is an object where something else belongs",
		`[]`:                         "it is a list where something else belongs",
		`{"in": {"t": "yesterday"}}`: "a time in it is none",
		`{"in": {"S": "9x"}}`:        `"9x" is not a size`,
		`{"in": {"n": 1}}garbage`:    "it is not JSON from line 1, byte 17 on",
		strings.Repeat("[", 100_000): "it ",
	} {
		if err := os.WriteFile(f.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := f.Read(&v)
		if err == nil || !strings.HasPrefix(err.Error(), f.Path+" (the spec of node a) cannot be read: "+want) || !strings.HasSuffix(err.Error(), "; mend it") {
			t.Errorf("%.40q: %v\nwant %q", text, err, want)
		}
		for _, word := range []string{"json", "unmarshal", "Go ", "invalid character"} {
			if err != nil && strings.Contains(strings.TrimPrefix(err.Error(), f.Path), word) {
				t.Errorf("%.40q: %v: a word of the decoder's: %s", text, err, word)
			}
		}
		if refuse.KindOf(err) != refuse.Failed {
			t.Errorf("%.40q: exit code %d", text, refuse.KindOf(err))
		}
	}
}

// TestUnknownKey: a key that a document does not have is named.
func TestUnknownKey(t *testing.T) {
	text := []byte(`{"name": "n", "env_from": "/etc/secret"}`)
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&struct{ Name string }{})
	if got, want := Wrong(text, err), `"env_from" is none of its keys`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
