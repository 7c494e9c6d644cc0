package spec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of nesting, so that no input can overflow the recursive parser's stack. A spec needs four levels.
const (
	deepestFlow   = 16  // brackets within brackets
	deepestColumn = 256 // column of a key's colon or a list's dash outside brackets
)

// Bounds of one document. The scanner's time for multi-line text grows with lines times bytes; within these bounds it
// stays below a second.
const (
	longestDocument = 64 << 10
	mostLines       = 2000
)

// documents splits a text into the bodies of its YAML documents and drops empty ones. It scans and parses each document
// separately: a mistake in one hides none in the next, and the parser loses documents after an empty one.
func (r *reader) documents(text string) []ast.Node {
	var bodies []ast.Node
	add := func(doc string, first int) {
		if body := r.parse(doc, first); body != nil {
			bodies = append(bodies, body)
		}
	}
	start, first := 0, 1 // first byte and line of the document
	pos, line := 0, 1
	for l := range strings.Lines(text) {
		if isMarker(l) {
			add(text[start:pos], first)
			start, first = pos, line
		}
		pos, line = pos+len(l), line+1
	}
	add(text[start:], first)
	return bodies
}

// isMarker reports whether a line begins or ends a document. In YAML such a line does so even within quotes.
func isMarker(line string) bool {
	rest, ok := strings.CutPrefix(line, "---")
	if !ok {
		rest, ok = strings.CutPrefix(line, "...")
	}
	return ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n"))
}

// scan splits a document into tokens, without comments and markers. first is the file's line on which the document
// begins.
func (r *reader) scan(doc string, first int) token.Tokens {
	if len(doc) > longestDocument || strings.Count(doc, "\n") > mostLines {
		r.bad(position{first, 1}, "", fmt.Sprintf("the document is too long: at most %d KiB and %d lines", longestDocument>>10, mostLines))
		return nil
	}
	var tokens token.Tokens
	for _, t := range lexer.Tokenize(doc) {
		switch t.Type {
		case token.DocumentHeaderType, token.DocumentEndType, token.CommentType:
		default:
			t.Position.Line += first - 1
			tokens = append(tokens, t)
		}
	}
	return tokens
}

// parse builds the tree of one document. It returns nil if the document is empty or cannot be parsed.
func (r *reader) parse(text string, first int) ast.Node {
	doc := r.scan(text, first)
	if len(doc) == 0 || !r.plain(doc) {
		return nil
	}
	file, err := parser.Parse(doc, 0, parser.AllowDuplicateMapKey()) // the decoder reports duplicate keys
	if err != nil {
		r.badYAML(doc[0], err)
		return nil
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		r.bad(positionOf(doc[0]), "", "not a node: keys and values, at least name and image")
		return nil
	}
	return file.Docs[0].Body
}

// badYAML reports an error of the parser at the error's position, or at the document's first token if it has none.
func (r *reader) badYAML(first *token.Token, err error) {
	var placed interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &placed) && placed.GetToken() != nil {
		r.bad(positionOf(placed.GetToken()), "", "not YAML: "+placed.GetMessage())
		return
	}
	r.bad(positionOf(first), "", "not YAML: "+err.Error())
}

// plain refuses the parts of YAML that a spec does not use, and nesting deeper than any spec needs.
func (r *reader) plain(doc token.Tokens) bool {
	depth := 0
	for _, t := range doc {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			r.bad(positionOf(t), "", fmt.Sprintf("%q is not allowed: a spec has no anchors, aliases and merge keys; write the value out, or in quotes if it is text", t.Value))
			return false
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			r.bad(positionOf(t), "", fmt.Sprintf("%q is not allowed: a spec has no tags, directives and ? keys; put it in quotes if it is text", t.Value))
			return false
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		isDeep := t.Type == token.SequenceEntryType || t.Type == token.MappingValueType
		if depth > deepestFlow || (depth == 0 && isDeep && t.Position.Column > deepestColumn) {
			r.bad(positionOf(t), "", "nested too deep: no spec needs that")
			return false
		}
	}
	return true
}
