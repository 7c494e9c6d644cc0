package vnode

import (
	"reflect"
	"strings"
)

// Pattern returns the regular expression for the text of a unit, list or image, for the JSON Schema; "" for other
// types. It accepts a little more than the parser, which also checks bounds.
func Pattern(t reflect.Type) string {
	const number = `[0-9]+(\.[0-9]+)?`
	switch t {
	case reflect.TypeFor[Bytes]():
		return "^" + number + "(" + unitPattern(byteUnits()) + ")?$"
	case reflect.TypeFor[Rate]():
		return "^" + number + "(" + unitPattern(byteUnits()) + ")/s$"
	case reflect.TypeFor[BitRate]():
		return "^" + number + "(" + unitPattern(bitUnits) + ")$"
	case reflect.TypeFor[Cores]():
		return "^" + number + "$"
	case reflect.TypeFor[Duration]():
		return "^(" + number + "(ms|s|m|h))+$"
	case reflect.TypeFor[CPUSet]():
		return "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"
	case reflect.TypeFor[Image]():
		return "^(host|(oci|oci-layout|dir|file):.+)$"
	}
	return ""
}

func unitPattern(units []unit) string {
	names := make([]string, len(units))
	for i, u := range units {
		names[i] = u.name
	}
	return strings.Join(names, "|")
}
