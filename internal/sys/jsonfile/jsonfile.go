// Package jsonfile reads JSON files and explains in plain words what is wrong with a damaged one.
package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"berth/internal/sys/refuse"
)

// File is a JSON file with the words that messages use for it.
type File struct {
	Path   string
	Is     string      // its purpose: "the spec of node wn-001"
	Remedy string      // the remedy if it is damaged
	Kind   refuse.Kind // kind of the refusal of a damaged file; 0: Failed
}

// Read reads the file into v. It returns an error of the file system as it is (fs.ErrNotExist if there is no file). A
// damaged file is a refusal that says which file it is, its purpose, what is wrong and the remedy.
func (f File) Read(v any) error {
	data, err := os.ReadFile(f.Path)
	if err != nil {
		return err
	}
	return f.Decode(data, v)
}

// Decode is Read for data that has been read already.
func (f File) Decode(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return f.Damaged(Wrong(data, err), err)
	}
	return nil
}

// Damaged returns the refusal of a damaged file. err is the cause; it is not printed.
func (f File) Damaged(wrong string, err error) error {
	kind := f.Kind
	if kind == 0 {
		kind = refuse.Failed
	}
	return &refuse.Error{Kind: kind, What: fmt.Sprintf("%s (%s) cannot be read: %s", f.Path, f.Is, wrong), Remedy: f.Remedy, Err: err}
}

// mostParts is about how many values a stranger's document may have.
const mostParts = 200_000

// Foreign is json.Unmarshal for a document that a stranger wrote. It refuses one of very many parts: an empty object of two bytes takes
// hundreds of bytes of memory once it is read. what names the document in the error.
func Foreign(data []byte, v any, what string) error {
	if n := bytes.Count(data, []byte(",")); n > mostParts {
		return refuse.Invalidf("%s has too many parts: %d, at most %d are read", what, n, mostParts)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return refuse.Invalidf("%s cannot be read: %s", what, Wrong(data, err))
	}
	return nil
}

// Wrong describes the mistake in data that encoding/json refused with err. It avoids the decoder's own messages, which are
// about Go's types.
func Wrong(data []byte, err error) string {
	if len(bytes.TrimSpace(data)) == 0 {
		return "it is empty"
	}
	if len(bytes.Trim(data, "\x00")) == 0 {
		return "it holds nothing but zero bytes, as after a power failure"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) { // from a json.Decoder on a stream
		return "it ends in the middle"
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if endsEarly(data) {
			return "it ends in the middle"
		}
		return "it is not JSON from " + place(data, e.Offset) + " on"
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // Value is "number 1.5" or "array"
		if e.Field == "" {
			return "it is " + a(kind) + " where something else belongs"
		}
		return fmt.Sprintf("%s at %s is %s where something else belongs", e.Field, place(data, e.Offset), a(kind))
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok {
		return "a time in it is none"
	}
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		return name + " is none of its keys"
	}
	if strings.HasPrefix(err.Error(), "json: ") {
		return "a value in it is not of the right kind"
	}
	return err.Error() // from Berth's own types: sizes, rates, images
}

// endsEarly reports whether data is only truncated: with a space appended, the syntax error is then after the space.
func endsEarly(data []byte) bool {
	var none any
	e, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(append(bytes.Clone(data), ' '), &none))
	return ok && e.Offset > int64(len(data))
}

// place returns the line and column of the last byte read before offset.
func place(data []byte, offset int64) string {
	before := data[:min(max(offset-1, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("line %d, byte %d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}

// a returns one of JSON's kinds of value with its article.
func a(kind string) string {
	switch kind {
	case "object":
		return "an object"
	case "array":
		return "a list"
	case "string":
		return "text"
	case "bool":
		return "true or false"
	}
	return "a " + kind
}
