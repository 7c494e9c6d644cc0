package spec

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of nesting, so that the recursive parser cannot be driven out of its stack. A spec needs four levels.
const (
	deepestFlow   = 16  // brackets within brackets
	deepestColumn = 256 // of a key's colon or a list's dash outside brackets
)

// documents splits a text into the bodies of its YAML documents, without empty ones. Each document is parsed on its
// own, so that a mistake in one hides none in the next, and because the parser loses what follows an empty document.
func (r *reader) documents(text string) []ast.Node {
	var bodies []ast.Node
	var doc token.Tokens
	end := func() {
		if body := r.parse(doc); body != nil {
			bodies = append(bodies, body)
		}
		doc = nil
	}
	for _, t := range lexer.Tokenize(text) {
		switch t.Type {
		case token.DocumentHeaderType, token.DocumentEndType:
			end()
		case token.CommentType:
		default:
			doc = append(doc, t)
		}
	}
	end()
	return bodies
}

// parse builds the tree of one document; nil if it is empty or cannot be parsed.
func (r *reader) parse(doc token.Tokens) ast.Node {
	if len(doc) == 0 || !r.plain(doc) {
		return nil
	}
	file, err := parser.Parse(doc, 0, parser.AllowDuplicateMapKey()) // the decoder tells duplicates with the rest
	if err != nil {
		at, msg := placeOf(doc[0]), err.Error()
		var placed interface {
			GetToken() *token.Token
			GetMessage() string
		}
		if errors.As(err, &placed) && placed.GetToken() != nil {
			at, msg = placeOf(placed.GetToken()), placed.GetMessage()
		}
		r.bad(at, "", "not YAML: "+msg)
		return nil
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		r.bad(placeOf(doc[0]), "", "not a node: keys and values, at least name and image")
		return nil
	}
	return file.Docs[0].Body
}

// plain refuses the parts of YAML that a spec does without, and nesting that no spec has.
func (r *reader) plain(doc token.Tokens) bool {
	depth := 0
	for _, t := range doc {
		switch t.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			r.bad(placeOf(t), "", fmt.Sprintf("%q is not allowed: a spec has no anchors, aliases and merge keys; write the value out, or in quotes if it is text", t.Value))
			return false
		case token.TagType, token.DirectiveType, token.MappingKeyType:
			r.bad(placeOf(t), "", fmt.Sprintf("%q is not allowed: a spec has no tags, directives and ? keys; put it in quotes if it is text", t.Value))
			return false
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		isDeep := t.Type == token.SequenceEntryType || t.Type == token.MappingValueType
		if depth > deepestFlow || (depth == 0 && isDeep && t.Position.Column > deepestColumn) {
			r.bad(placeOf(t), "", "nested too deep: no spec needs that")
			return false
		}
	}
	return true
}
