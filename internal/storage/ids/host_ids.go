package ids

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// span is the ids from up to, but not including, to.
type span struct{ from, to uint64 }

type spans []span

// overlap reports whether the range at base shares an id with one of the spans.
func (s spans) overlap(base uint32) bool {
	from, to := uint64(base), uint64(base)+Size
	for _, x := range s {
		if x.from < to && from < x.to {
			return true
		}
	}
	return false
}

// idFile is a file of /etc that assigns ids.
type idFile struct {
	name         string
	start, count int // columns; count -1: one id
}

func assigned() []idFile {
	return []idFile{{"passwd", 2, -1}, {"group", 2, -1}, {"subuid", 1, 2}, {"subgid", 1, 2}}
}

// hostIDs reads which ids the host has assigned: to users and groups, and to users for their own containers (subuid(5),
// subgid(5)).
func hostIDs(etc string) (spans, error) { return read(etc, assigned()) }

// read reads which ids files assign. A missing file gives none, and so does a line that cannot be parsed.
func read(etc string, files []idFile) (spans, error) {
	var all spans
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(etc, f.name)) // the host's own; a group's line lists all its members
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read which ids the host uses: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if s, ok := parseSpan(strings.TrimRight(line, "\r\n"), f.start, f.count); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func parseSpan(line string, start, count int) (span, bool) {
	columns := strings.Split(line, ":")
	if max(start, count) >= len(columns) {
		return span{}, false
	}
	from, err := strconv.ParseUint(columns[start], 10, 32)
	if err != nil {
		return span{}, false
	}
	n := uint64(1)
	if count >= 0 {
		if n, err = strconv.ParseUint(columns[count], 10, 32); err != nil {
			return span{}, false
		}
	}
	return span{from, from + n}, true
}
