package spec

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"berth/internal/spec/vnode"
)

// decoder fills one node from one document. It goes on after a mistake, to report all of them.
type decoder struct {
	*reader
	positions positions
	failed    []string // fields that could not be read: Validate's problems with them are dropped
	unknown   []string // structures with an unknown key: a missing key may be there, misspelt
}

func (d *decoder) node(body ast.Node, n *vnode.Node) {
	d.value(body, "", reflect.ValueOf(n).Elem())
}

func (d *decoder) fail(at position, field, format string, a ...any) {
	d.failed = append(d.failed, field)
	d.bad(at, field, fmt.Sprintf(format, a...))
}

// hasFailed reports whether a field, a part of it or a structure around it could not be read.
func (d *decoder) hasFailed(field string) bool {
	for _, f := range d.failed {
		if vnode.Within(f, field) || vnode.Within(field, f) {
			return true
		}
	}
	return false
}

// lacksKnown reports whether field belongs to a list entry or group that has an unknown key. A missing key is then not
// reported: it may be the misspelt one.
func (d *decoder) lacksKnown(field string) bool {
	if _, written := d.positions[field]; !written {
		field = field[:max(strings.LastIndexByte(field, '.'), 0)]
	}
	return field != "" && slices.Contains(d.unknown, field)
}

// value reads y into v, whose type says what is allowed.
func (d *decoder) value(y ast.Node, field string, v reflect.Value) {
	d.positions[field] = start(y)
	if _, ok := y.(*ast.NullNode); ok {
		d.fail(start(y), field, "no value: leave the key out or give it one")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		d.value(y, field, v.Elem())
		return
	}
	if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		d.text(y, field, u)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(y, field, v)
	case reflect.Slice:
		d.list(y, field, v)
	case reflect.Map:
		d.table(y, field, v)
	default:
		d.scalar(y, field, v)
	}
}

// text reads a value whose type parses its own text, such as a size.
func (d *decoder) text(y ast.Node, field string, u encoding.TextUnmarshaler) {
	s, _, ok := scalarText(y)
	if !ok {
		d.fail(start(y), field, "%s where a single value is expected", kindOf(y))
		return
	}
	if err := u.UnmarshalText([]byte(s)); err != nil {
		d.fail(start(y), field, "%s%s", err, d.meant(err))
	}
}

// meant returns a hint about a text that names no image, else "".
func (d *decoder) meant(err error) string {
	var e *vnode.ImageError
	if d.hint == nil || !errors.As(err, &e) {
		return ""
	}
	return "; " + d.hint(e.Text)
}

// scalar reads text, a number or a truth value. Numbers must be in the form that every YAML reader takes for the same
// number: no leading zero, sign, hexadecimal or grouping.
func (d *decoder) scalar(y ast.Node, field string, v reflect.Value) {
	s, quoted, ok := scalarText(y)
	if !ok {
		hint := ""
		if isColonText(y) {
			hint = ": put text with a colon in quotes"
		}
		d.fail(start(y), field, "%s where %s is expected%s", kindOf(y), expected(v.Type()), hint)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
		return
	case reflect.Bool:
		if !quoted && (s == "true" || s == "false") {
			v.SetBool(s == "true")
			return
		}
	case reflect.Int:
		if i, err := strconv.ParseInt(s, 10, strconv.IntSize); err == nil && !quoted && strconv.FormatInt(i, 10) == s {
			v.SetInt(i)
			return
		}
	case reflect.Uint64:
		if u, err := strconv.ParseUint(s, 10, 64); err == nil && !quoted && strconv.FormatUint(u, 10) == s {
			v.SetUint(u)
			return
		}
	}
	if quoted {
		d.fail(start(y), field, "text in quotes where %s is expected", expected(v.Type()))
		return
	}
	d.fail(start(y), field, "%s is not allowed: %s", quote(s), expected(v.Type()))
}

func (d *decoder) list(y ast.Node, field string, v reflect.Value) {
	seq, ok := y.(*ast.SequenceNode)
	if !ok {
		d.fail(start(y), field, "%s where a list is expected: write [A, B]", kindOf(y))
		return
	}
	for i, e := range seq.Values {
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(e, fmt.Sprintf("%s[%d]", field, i), item)
		v.Set(reflect.Append(v, item))
	}
}

// structure reads the keys of a struct by its json tags. A device may be given as its path alone.
func (d *decoder) structure(y ast.Node, field string, v reflect.Value) {
	if dev, ok := reflect.TypeAssert[*vnode.Device](v.Addr()); ok {
		if s, _, ok := scalarText(y); ok {
			dev.Path = s
			return
		}
	}
	pairs, ok := pairsOf(y)
	if !ok {
		d.fail(start(y), field, "%s where keys and values are expected: %s", kindOf(y), strings.Join(keysOf(v.Type()), ", "))
		return
	}
	seen := map[string]position{}
	for _, p := range pairs {
		key, at := keyText(p), positionOf(p.Key.GetToken())
		inner := join(field, key)
		if first, twice := seen[key]; twice {
			d.fail(at, inner, "the key is already at line %d", first.line)
			continue
		}
		seen[key] = at
		i, ok := fieldIndex(v.Type(), key)
		if !ok {
			meant, text := hint(key, keysOf(v.Type()))
			d.bad(at, inner, "unknown key; "+text)
			d.unknown = append(d.unknown, field)
			if meant != "" {
				d.failed = append(d.failed, join(field, meant))
			}
			continue
		}
		d.value(p.Value, inner, v.Field(i))
		d.refuseZero(p.Value, inner, v.Field(i))
	}
}

// refuseZero refuses a written zero value, because a Node cannot distinguish it from a missing key.
func (d *decoder) refuseZero(y ast.Node, field string, v reflect.Value) {
	if !v.IsZero() || d.hasFailed(field) {
		return
	}
	switch {
	case v.Kind() == reflect.String:
		d.fail(start(y), field, "empty: leave the key out or give it a value")
	case v.CanInt():
		d.fail(start(y), field, "0 is not allowed: for no limit leave the key out")
	}
}

// table reads a map, whose keys the user chooses: page sizes, names of limits.
func (d *decoder) table(y ast.Node, field string, v reflect.Value) {
	pairs, ok := pairsOf(y)
	if !ok {
		d.fail(start(y), field, "%s where keys and values are expected: write {KEY: VALUE}", kindOf(y))
		return
	}
	if len(pairs) > 0 {
		v.Set(reflect.MakeMap(v.Type()))
	}
	for _, p := range pairs {
		at := positionOf(p.Key.GetToken())
		key := reflect.New(v.Type().Key()).Elem()
		if u, ok := reflect.TypeAssert[encoding.TextUnmarshaler](key.Addr()); ok {
			if err := u.UnmarshalText([]byte(keyText(p))); err != nil {
				d.fail(at, join(field, keyText(p)), "%s", err)
				continue
			}
		} else {
			key.SetString(keyText(p))
		}
		inner := join(field, fmt.Sprint(key.Interface()))
		if v.MapIndex(key).IsValid() {
			d.fail(at, inner, "the key is there already")
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(p.Value, inner, item)
		if key.Kind() == reflect.String {
			d.positions[inner] = at // a problem of Validate with such an entry is about its key
		}
		v.SetMapIndex(key, item)
	}
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

// fieldIndex returns the index of the struct field that has a key.
func fieldIndex(t reflect.Type, key string) (int, bool) {
	for i := range t.NumField() {
		if isKey(t.Field(i)) && vnode.FieldKey(t.Field(i)) == key {
			return i, true
		}
	}
	return 0, false
}

// isKey reports whether a field is one of the document, and not one that a program keeps beside the document.
func isKey(f reflect.StructField) bool {
	key := vnode.FieldKey(f)
	return f.IsExported() && key != "" && key != "-"
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for field := range t.Fields() {
		if isKey(field) {
			keys = append(keys, vnode.FieldKey(field))
		}
	}
	return keys
}

func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number from 0"
	}
	return "text"
}

func kindOf(y ast.Node) string {
	switch y.(type) {
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys and values"
	}
	return "a single value"
}

// isColonText reports whether y is a single key and value, which is how this parser reads an unquoted a:b in brackets.
func isColonText(y ast.Node) bool {
	pairs, ok := pairsOf(y)
	return ok && len(pairs) == 1
}

// scalarText returns a single value as written, without its quotes.
func scalarText(y ast.Node) (text string, quoted, ok bool) {
	switch y := y.(type) {
	case *ast.StringNode:
		t := y.GetToken().Type
		return y.Value, t == token.SingleQuoteType || t == token.DoubleQuoteType, true
	case *ast.LiteralNode:
		return y.Value.Value, true, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return y.GetToken().Value, false, true
	}
	return "", false, false
}

func pairsOf(y ast.Node) ([]*ast.MappingValueNode, bool) {
	switch y := y.(type) {
	case *ast.MappingNode:
		return y.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{y}, true
	}
	return nil, false
}

func keyText(p *ast.MappingValueNode) string {
	if s, ok := p.Key.(*ast.StringNode); ok {
		return s.Value
	}
	return p.Key.GetToken().Value
}

// start returns the position where a value begins. For keys and values without brackets that is the first key.
func start(y ast.Node) position {
	switch y := y.(type) {
	case *ast.MappingNode:
		if !y.IsFlowStyle && len(y.Values) > 0 {
			return positionOf(y.Values[0].Key.GetToken())
		}
	case *ast.MappingValueNode:
		return positionOf(y.Key.GetToken())
	}
	return positionOf(y.GetToken())
}
