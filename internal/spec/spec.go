// Package spec reads and writes nodes as YAML and describes that YAML as a JSON Schema. It reads strictly and reports
// the position of every mistake.
//
// A spec is YAML without anchors, aliases, merge keys, tags, directives and "?" keys. Each value is written where it is
// used. So every mistake has a position, and a small file cannot expand into a large one.
package spec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// LongestFile is the most bytes of one file, enough for a thousand nodes with many keys each.
const LongestFile = 1 << 20

// Parse reads the nodes of one file, one per YAML document. file is its name in messages.
//
// It reports all mistakes of the file at once: the error is a refusal of kind Invalid whose cause is Problems. It
// neither fills in defaults nor changes relative image paths: see vnode.Defaults and Resolve.
func Parse(file string, data []byte) ([]*vnode.Node, error) { return ParseHinted(file, data, nil) }

// ParseHinted is Parse with a hint for texts that name no image: hint returns the text that was probably meant.
func ParseHinted(file string, data []byte, hint func(image string) string) ([]*vnode.Node, error) {
	r := &reader{file: file, hint: hint}
	nodes := r.nodes(data)
	if len(r.problems) > 0 {
		r.problems.sort()
		return nil, &refuse.Error{Kind: refuse.Invalid, What: r.problems.Error(), Err: r.problems}
	}
	return nodes, nil
}

// Resolve makes a relative path in a node's image absolute. dir is the folder of the spec's file; a relative one is below the current folder, which
// is asked for only then: it may be gone.
func Resolve(n *vnode.Node, dir string) error {
	switch n.Image.Kind {
	case vnode.DirImage, vnode.FileImage, vnode.OCILayoutImage:
		if !filepath.IsAbs(n.Image.Ref) {
			at, err := filepath.Abs(filepath.Join(dir, n.Image.Ref))
			if err != nil {
				return fmt.Errorf("find the folder of image %s: %w", n.Image.Ref, err)
			}
			n.Image.Ref = at
		}
	}
	return nil
}

// reader reads one file.
type reader struct {
	file     string
	hint     func(image string) string // nil: no hints
	problems Problems
}

func (r *reader) bad(at position, field, msg string) {
	r.problems = append(r.problems, Problem{File: r.file, Line: at.line, Column: at.column, Field: field, Msg: msg})
}

func (r *reader) nodes(data []byte) []*vnode.Node {
	if !r.readable(data) {
		return nil
	}
	docs := r.documents(strings.TrimPrefix(string(data), "\ufeff"))
	if len(docs) == 0 && len(r.problems) == 0 {
		r.bad(position{1, 1}, "", "no node in this file: at least name and image")
	}
	var nodes []*vnode.Node
	names := map[string]position{}
	for _, doc := range docs {
		n, positions := r.document(doc)
		at := positions.find("name")
		if first, twice := names[n.Name]; twice && n.Name != "" {
			r.bad(at, "name", quote(n.Name)+" is the name of another node: line "+first.lineText())
		}
		names[n.Name] = at
		nodes = append(nodes, n)
	}
	return nodes
}

// readable refuses data that is too large or no UTF-8 text before the YAML scanner sees it.
func (r *reader) readable(data []byte) bool {
	if len(data) > LongestFile {
		r.bad(position{1, 1}, "", "the file is too large: at most 1MiB")
		return false
	}
	line := 1
	for rest := data; len(rest) > 0; {
		c, size := utf8.DecodeRune(rest)
		if (c == utf8.RuneError && size == 1) || c == 0 {
			r.bad(position{line, 1}, "", "the file is not UTF-8 text")
			return false
		}
		if c == '\n' {
			line++
		}
		rest = rest[size:]
	}
	return true
}

// document reads one node and validates the fields that could be read.
func (r *reader) document(body ast.Node) (*vnode.Node, positions) {
	n := &vnode.Node{}
	d := &decoder{reader: r, positions: positions{}}
	d.node(body, n)
	for _, p := range vnode.Validate(n) {
		if !d.hasFailed(p.Field) && !d.lacksKnown(p.Field) && !slices.ContainsFunc(p.RestsOn, func(f string) bool { return d.hasFailed(f) || d.lacksKnown(f) }) {
			r.bad(d.positions.find(p.Field), p.Field, p.Msg)
		}
	}
	return n, d.positions
}

// position is where something begins in a file. Lines and columns count from 1, columns in characters.
type position struct{ line, column int }

func positionOf(t *token.Token) position {
	return position{t.Position.Line, t.Position.Column}
}

// positions maps a field ("io[0].name") to the position of its value.
type positions map[string]position

// find returns the position of a field, or of the nearest field around it that the file has.
func (p positions) find(field string) position {
	for {
		if at, ok := p[field]; ok || field == "" {
			return at
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
}
