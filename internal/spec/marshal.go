package spec

import (
	"encoding"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"berth/internal/spec/vnode"
)

// Marshal writes the settings of a node as YAML, in the order of the types. Parse reads the same node from it, if
// vnode.Validate finds no problem in the node.
func Marshal(n *vnode.Node) ([]byte, error) {
	var out strings.Builder
	v := reflect.ValueOf(n).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			continue
		}
		out.WriteString(vnode.FieldKey(v.Type().Field(i)) + ":")
		if err := writeTop(&out, v.Field(i)); err != nil {
			return nil, fmt.Errorf("write node %s as YAML: %w", n.Name, err)
		}
	}
	return []byte(out.String()), nil
}

// writeTop writes the value of a top-level key on one line. A list of structs gets one line per key.
func writeTop(out *strings.Builder, v reflect.Value) error {
	if v.Kind() != reflect.Slice || v.Type().Elem().Kind() != reflect.Struct {
		text, err := flow(v)
		out.WriteString(" " + text + "\n")
		return err
	}
	out.WriteString("\n")
	for i := range v.Len() {
		entry := v.Index(i)
		if d, ok := reflect.TypeAssert[vnode.Device](entry); ok && d == (vnode.Device{Path: d.Path}) {
			out.WriteString("  - " + textForm(d.Path) + "\n")
			continue
		}
		if entry.IsZero() {
			out.WriteString("  - {}\n")
		}
		lead := "  - "
		for i := range entry.NumField() {
			if entry.Field(i).IsZero() {
				continue
			}
			text, err := flow(entry.Field(i))
			if err != nil {
				return err
			}
			out.WriteString(lead + vnode.FieldKey(entry.Type().Field(i)) + ": " + text + "\n")
			lead = "    "
		}
	}
	return nil
}

// flow writes a value on one line.
func flow(v reflect.Value) (string, error) {
	if m, ok := reflect.TypeAssert[encoding.TextMarshaler](v); ok && v.Kind() != reflect.Pointer {
		text, err := m.MarshalText()
		return unitForm(string(text)), err
	}
	switch v.Kind() {
	case reflect.Pointer:
		return flow(v.Elem())
	case reflect.Struct:
		var pairs []string
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				continue
			}
			text, err := flow(v.Field(i))
			if err != nil {
				return "", err
			}
			pairs = append(pairs, vnode.FieldKey(v.Type().Field(i))+": "+text)
		}
		return "{" + strings.Join(pairs, ", ") + "}", nil
	case reflect.Map:
		return flowMap(v)
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			text, err := flow(v.Index(i))
			if err != nil {
				return "", err
			}
			items = append(items, text)
		}
		return "[" + strings.Join(items, ", ") + "]", nil
	case reflect.String:
		return textForm(v.String()), nil
	case reflect.Bool, reflect.Int, reflect.Uint64:
		return fmt.Sprint(v.Interface()), nil
	}
	return "", fmt.Errorf("no form for %s", v.Type())
}

func flowMap(v reflect.Value) (string, error) {
	var pairs []string
	for _, key := range v.MapKeys() {
		text, err := flow(v.MapIndex(key))
		if err != nil {
			return "", err
		}
		pairs = append(pairs, unitForm(fmt.Sprint(key.Interface()))+": "+text)
	}
	slices.Sort(pairs)
	return "{" + strings.Join(pairs, ", ") + "}", nil
}

// textForm writes free text. It omits the quotes only if every YAML reader takes the result for text.
func textForm(s string) string {
	if isPlain(s) {
		return s
	}
	return strconv.Quote(s) // if s is UTF-8, Go's escapes are a subset of YAML's
}

func isPlain(s string) bool {
	switch strings.ToLower(s) {
	case "", "true", "false", "yes", "no", "on", "off", "y", "n", "null":
		return false
	}
	if !onlyLetters(s, "/._-") {
		return false
	}
	if c := s[0]; c >= '0' && c <= '9' {
		_, err1 := netip.ParseAddr(s)
		_, err2 := netip.ParsePrefix(s)
		return err1 == nil || err2 == nil
	}
	return s[0] != '.' && s[0] != '-'
}

// unitForm writes a value that has its own text form: a size, a rate, an image.
func unitForm(s string) string {
	if s != "" && onlyLetters(s, "/._-:@") && !strings.ContainsAny(s[:1], "._-:@") && !strings.HasSuffix(s, ":") {
		return s
	}
	return strconv.Quote(s)
}

// onlyLetters reports whether s has only ASCII letters and digits and the characters in others.
func onlyLetters(s, others string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(others, c)
	})
}
