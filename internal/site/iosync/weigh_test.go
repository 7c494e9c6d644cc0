package iosync

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
)

func TestWeigh(t *testing.T) {
	t.Parallel()
	wish := func(node string, class vnode.Class, weight int) Wish {
		return Wish{Node: node, Class: class, Want: want.Entry{Weight: weight}}
	}
	for name, c := range map[string]struct {
		all  []Wish
		want map[string]int
	}{
		"no class":      {[]Wish{wish("a", "", 800), wish("b", "", 0)}, nil},
		"one of each":   {[]Wish{wish("a", vnode.Storage, 0), wish("b", "", 0), wish("c", vnode.Batch, 0)}, map[string]int{"a": 1000, "b": 100, "c": 1}},
		"own weights":   {[]Wish{wish("a", "", 800), wish("b", "", 10), wish("c", vnode.Batch, 900)}, map[string]int{"a": 800, "b": 10, "c": 9}},
		"more than fit": {[]Wish{wish("a", vnode.Storage, 400), wish("b", vnode.Storage, 100), wish("c", "", 0)}, map[string]int{"a": 1000, "b": 250, "c": 25}},
	} {
		if diff := cmp.Diff(c.want, weigh(c.all)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
