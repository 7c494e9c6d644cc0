// Package jsonfile reads JSON that Berth keeps or is given, and says in words what is wrong with a file that is damaged.
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

	"berth/internal/refuse"
)

// File is a file of JSON as people know it.
type File struct {
	Path   string
	Is     string      // what it is for: "the spec of node wn-001"
	Remedy string      // what to do when it is damaged
	Kind   refuse.Kind // of the refusal then; 0: Failed
}

// Read reads the file into v. An error of the file system is returned as it is, with fs.ErrNotExist in it where there is
// no file; a damaged file is a refusal that says which file it is, what it is for, what is wrong and what to do.
func (f File) Read(v any) error {
	data, err := os.ReadFile(f.Path)
	if err != nil {
		return err
	}
	return f.Decode(data, v)
}

// Decode is Read of a file that is read already.
func (f File) Decode(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return f.Damaged(Wrong(data, err), err)
	}
	return nil
}

// Damaged is the refusal of a file in which something is wrong. err is the cause; it is not printed.
func (f File) Damaged(wrong string, err error) error {
	kind := f.Kind
	if kind == 0 {
		kind = refuse.Failed
	}
	return &refuse.Error{Kind: kind, What: fmt.Sprintf("%s (%s) cannot be read: %s", f.Path, f.Is, wrong), Remedy: f.Remedy, Err: err}
}

// Wrong says what is wrong with data that encoding/json refused with err. It has none of the decoder's own words, which
// speak of Go's types.
func Wrong(data []byte, err error) string {
	if len(bytes.TrimSpace(data)) == 0 {
		return "it is empty"
	}
	if len(bytes.Trim(data, "\x00")) == 0 {
		return "it holds nothing but zero bytes, as after a power failure"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) { // of a decoder that reads a stream
		return "it ends in the middle"
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		if endsEarly(data) {
			return "it ends in the middle"
		}
		return "it is not JSON from " + place(data, e.Offset) + " on"
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // "number 1.5" and "array" alike
		if e.Field == "" {
			return "it is " + a(kind) + " where something else belongs"
		}
		return fmt.Sprintf("%s at %s is %s where something else belongs", e.Field, place(data, e.Offset), a(kind))
	}
	if _, ok := errors.AsType[*time.ParseError](err); ok {
		return "a time in it is none"
	}
	if strings.HasPrefix(err.Error(), "json: ") {
		return "a value in it is not of the right kind"
	}
	return err.Error() // of the values that Berth reads itself: sizes, rates, images
}

// endsEarly reports whether what is wrong with data is that there is no more of it: with a space after it, the mistake
// lies behind the space.
func endsEarly(data []byte) bool {
	var none any
	e, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(append(bytes.Clone(data), ' '), &none))
	return ok && e.Offset > int64(len(data))
}

// place is the line and column of the last byte that was read before offset.
func place(data []byte, offset int64) string {
	before := data[:min(max(offset-1, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("line %d, byte %d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}

// a is one of JSON's kinds of value in a sentence.
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
