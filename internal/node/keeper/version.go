package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
	"berth/internal/sys/version"
)

// protocol is the number of the words between commands and the keeper. It grows when their meaning changes.
const protocol = 1

// Version is the version of one side of a connection. The first packet of each side has it, under "hello", in every version of
// the protocol.
type Version struct {
	Protocol int    `json:"protocol"`
	Berth    string `json:"berth"`
}

// own is the version of this program.
func own() Version { return Version{Protocol: protocol, Berth: version.Berth} }

func (v Version) String() string { return fmt.Sprintf("berth %s (protocol %d)", v.Berth, v.Protocol) }

// newer reports whether v is newer than w, as far as their numbers say so: v0.1.0-12-gabc is newer than v0.1.0.
func (v Version) newer(w Version) bool {
	if v.Protocol != w.Protocol {
		return v.Protocol > w.Protocol
	}
	return slices.Compare(numbers(v.Berth), numbers(w.Berth)) > 0
}

// numbers returns the leading numbers of a version.
func numbers(text string) []int {
	var all []int
	for part := range strings.FieldsFuncSeq(strings.TrimPrefix(text, "v"), func(r rune) bool { return r == '.' || r == '-' }) {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return all
}

// Decode decodes one JSON value strictly: a field that is not in v is an error that names it.
func Decode(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			return errors.New("something follows its end")
		}
		return nil
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok { // encoding/json has no type for it
		return &unknownField{field}
	}
	return errors.New(jsonfile.Wrong(data, err))
}

// unknownField is a field that this program does not know.
type unknownField struct{ name string }

func (e *unknownField) Error() string { return "the field " + e.name + " is not known" }

// explain says which side is to be renewed where a packet of the other side could not be read.
func explain(err error, other Version) error {
	me := own()
	if _, ok := errors.AsType[*unknownField](err); !ok {
		return fmt.Errorf("a packet of %s cannot be read by %s: %w", other, me, err)
	}
	order := "which of them is newer cannot be told"
	switch {
	case me.newer(other):
		order = "the former is older"
	case other.newer(me):
		order = "the former is newer"
	case me == other:
		order = "they call themselves the same"
	}
	return refuse.Cannotf("use one berth on this host; berth keeper --upgrade makes the keeper the berth that is called",
		"a packet of %s cannot be read by %s: %w; %s", other, me, err, order)
}
