package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
)

// TestAllowList: an admin's list is read as strictly as a spec, and its mistakes have their places.
func TestAllowList(t *testing.T) {
	for text, want := range map[string]any{
		"":                "",
		"# nothing yet\n": "",
		"allow:\n  - {from: 1500, count: 1}\n  - {from: 100000, count: 100000}\n": []vnode.IDRange{{From: 1500, Count: 1}, {From: 100000, Count: 100000}},
		"allow: [{from: 1500}]":                           "f:1:9: allow[0].count: missing: how many ids, from 1",
		"allow: [{count: 1500}]":                          "f:1:9: allow[0].from: missing: the first id, from 1 (the host's root is never shared)",
		"allow: [{from: 0, count: 5}]":                    "f:1:16: allow[0].from: 0 is not allowed: for no limit leave the key out",
		"allow: [{from: -3, count: 5}]":                   "f:1:16: allow[0].from: missing: the first id, from 1 (the host's root is never shared)",
		"allow:\n  - {from: 1000, count: 64536}":          "f:2:12: allow[0].from: 1000-65535 holds 61184-65519, and these ids are systemd's for services with DynamicUser",
		"allow: [{from: 1500, count: 3000000000}]":        "f:1:29: allow[0].count: 3000000000 ids from 1500: the last one may be 2147483647",
		"alow: [{from: 1500, count: 1}]":                  "f:1:1: alow: unknown key; did you mean allow?",
		"allow: [{from: 1500, count: 1}]\n---\nallow: []": "f:3:1: a second document: the list is one",
		"\xff": "f:1:1: the file is not UTF-8 text",
	} {
		got, err := ParseAllowList("f", []byte(text))
		if ranges, ok := want.([]vnode.IDRange); ok {
			if err != nil || !cmp.Equal(got.Allow, ranges) {
				t.Errorf("%q: %v, %v", text, got, err)
			}
		} else if want == "" && (err != nil || len(got.Allow) > 0) || want != "" && (err == nil || strings.TrimSpace(err.Error()) != want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
}
