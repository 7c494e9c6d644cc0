package spec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"berth/internal/spec/vnode"
)

// schema is the part of a JSON Schema that a spec needs.
type schema struct {
	Schema               string      `json:"$schema,omitempty"`
	Title                string      `json:"title,omitempty"`
	Description          string      `json:"description,omitempty"`
	Type                 any         `json:"type,omitempty"` // a name or a list of them
	Enum                 []string    `json:"enum,omitempty"`
	Pattern              string      `json:"pattern,omitempty"`
	Minimum              *int64      `json:"minimum,omitempty"`
	ExclusiveMinimum     *int64      `json:"exclusiveMinimum,omitempty"`
	Maximum              *int64      `json:"maximum,omitempty"`
	MinLength            int         `json:"minLength,omitempty"`
	Items                *schema     `json:"items,omitempty"`
	AnyOf                []*schema   `json:"anyOf,omitempty"`
	Properties           *properties `json:"properties,omitempty"`
	PropertyNames        *schema     `json:"propertyNames,omitempty"`
	AdditionalProperties any         `json:"additionalProperties,omitempty"` // false or a schema
	Required             []string    `json:"required,omitempty"`
}

// property is one key of an object. properties keep the order of the Go types.
type property struct {
	key    string
	schema *schema
}

type properties []property

// MarshalJSON writes an object with its keys in order.
func (p properties) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	for i, property := range p {
		key, err := json.Marshal(property.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(property.schema)
		if err != nil {
			return nil, err
		}
		out.WriteString([]string{"{", ","}[min(i, 1)])
		out.Write(key)
		out.WriteString(":")
		out.Write(value)
	}
	return append(out.Bytes(), '}'), nil
}

// Schema returns the JSON Schema (2020-12) of one node's spec, made from vnode's types and their tags. It checks keys,
// types, words, ranges and the forms of units; rules about several keys only Parse checks. The schema requires quotes
// around text that looks like a number; Parse takes such text as written.
func Schema() ([]byte, error) { return SchemaOf[vnode.Node]("Spec of a Berth node") }

// SchemaOf returns the JSON Schema of a file that ParseOne reads into a T.
func SchemaOf[T any](title string) ([]byte, error) {
	s := structSchema(reflect.TypeFor[T]())
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = title
	return json.MarshalIndent(s, "", "  ")
}

func structSchema(t reflect.Type) *schema {
	s := &schema{Type: "object", AdditionalProperties: false, Properties: &properties{}}
	for f := range t.Fields() {
		*s.Properties = append(*s.Properties, property{vnode.FieldKey(f), fieldSchema(f)})
		if !strings.Contains(f.Tag.Get("json"), ",") { // neither omitempty nor omitzero: the key is required
			s.Required = append(s.Required, vnode.FieldKey(f))
		}
	}
	return s
}

func fieldSchema(f reflect.StructField) *schema {
	s := typeSchema(f.Type)
	s.Description = f.Tag.Get("doc")
	s.Enum = vnode.Allowed(f.Tag)
	if low, high, ok := vnode.Range(f.Tag); ok {
		s.Minimum, s.Maximum = &low, &high
	}
	switch {
	case f.Name == "Command": // also of health
		s.Items = anyText()
	case f.Type.Kind() == reflect.String && s.Pattern == "" && s.Enum == nil:
		s.MinLength = 1
	}
	return s
}

// typeSchema returns the schema of a type. Units get a pattern; only Parse checks their bounds.
func typeSchema(t reflect.Type) *schema {
	if t == reflect.TypeFor[vnode.Device]() {
		return &schema{AnyOf: []*schema{{Type: "string", Pattern: "^/"}, structSchema(t)}}
	}
	if pattern := vnode.Pattern(t); pattern != "" {
		s := &schema{Type: "string", Pattern: pattern}
		switch t { // types that may be a bare number
		case reflect.TypeFor[vnode.Bytes](), reflect.TypeFor[vnode.CPUSet]():
			s.Type, s.Minimum = []string{"string", "integer"}, new(int64)
		case reflect.TypeFor[vnode.Cores]():
			s.Type, s.ExclusiveMinimum = []string{"string", "number"}, new(int64)
		}
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(t.Elem())
	case reflect.Struct:
		return structSchema(t)
	case reflect.Slice:
		return &schema{Type: "array", Items: typeSchema(t.Elem())}
	case reflect.Map:
		if t.Elem().Kind() == reflect.String {
			return &schema{Type: "object", AdditionalProperties: anyText()}
		}
		return &schema{Type: "object", PropertyNames: keySchema(t), AdditionalProperties: typeSchema(t.Elem())}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Uint64:
		return &schema{Type: "integer", Minimum: new(int64)}
	}
	return &schema{Type: "string"}
}

// anyText returns the schema of text that may look like a number or a truth value: the words of a command ([sleep, 10]), the
// values of options ({vers: 4.2}).
func anyText() *schema { return &schema{Type: []string{"string", "number", "boolean"}} }

// keySchema returns the schema of a map's keys: page sizes, or names of resource limits.
func keySchema(m reflect.Type) *schema {
	if m == reflect.TypeFor[vnode.RLimits]() {
		return &schema{Enum: vnode.RLimitNames()}
	}
	return &schema{Pattern: vnode.Pattern(m.Key())}
}
