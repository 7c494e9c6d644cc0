package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"berth/internal/bench/model"
	"berth/internal/host"
	"berth/internal/host/block"
	"berth/internal/image"
	"berth/internal/network/address"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/node/top"
	"berth/internal/site/audit"
	"berth/internal/spec/vnode"
)

// page reads a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// jsonKeys returns the keys of a type as encoding/json writes them, at any depth.
func jsonKeys(t reflect.Type) map[string]bool {
	keys, seen := map[string]bool{}, map[reflect.Type]bool{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		switch {
		case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
			add(t.Elem())
		case t.Kind() == reflect.Struct && t.PkgPath() != "time" && !seen[t]:
			seen[t] = true
			for f := range t.Fields() {
				if !f.IsExported() && !f.Anonymous {
					continue
				}
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name != "" && name != "-" {
					keys[name] = true
				}
				add(f.Type)
			}
		}
	}
	add(t)
	return keys
}

func TestJSONIsDocumented(t *testing.T) {
	text := page(t, "json.md")
	for _, v := range []any{
		node.Status{},
		node.Detail{},
		node.Proposal{},
		node.Outcome{},
		node.SetResult{},
		node.Repaired{},
		top.Sample{},
		protect.Service{},
		sriov.VFChange{},
		node.Row{},
		address.ListedPool{},
		host.Check{},
		image.Record{},
		sriov.PF{},
		block.Layer{},
		model.Model{},
		audit.Line{},
	} {
		keys := jsonKeys(reflect.TypeOf(v))
		if len(keys) == 0 {
			t.Errorf("%T has no keys", v)
		}
		for k := range keys {
			if !strings.Contains(text, "`"+k+"`") {
				t.Errorf("docs/json.md does not name %s of %T", k, v)
			}
		}
	}
}

// TestSpecIsDocumented checks that spec.md and full.yaml name each key of a spec, and limits.md each limit.
func TestSpecIsDocumented(t *testing.T) {
	keys := jsonKeys(reflect.TypeFor[vnode.Node]())
	for _, file := range []string{"spec.md", "../examples/full.yaml"} {
		text := page(t, file)
		for k := range keys {
			if !regexp.MustCompile("\\b" + k + "\\b").MatchString(text) {
				t.Errorf("docs/%s does not name %s", file, k)
			}
		}
	}
	limits := page(t, "limits.md")
	n := &vnode.Node{IO: []vnode.IO{{Name: "NAME"}}, Network: []vnode.Network{{Name: "NAME", Mode: vnode.Bridge}}}
	for _, k := range vnode.Settable(n) {
		dot := max(strings.LastIndex(k, "."), 0)
		apart := strings.Contains(limits, "`"+k[:dot]) && strings.Contains(limits, k[dot:]+"`") // `net.NAME.tx`, `.rx`
		if !strings.Contains(limits, "`"+k+"`") && !apart {
			t.Errorf("docs/limits.md does not name %s", k)
		}
	}
}
