package plan

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/spec/vnode"
)

func TestHugePageMounts(t *testing.T) {
	tests := []struct {
		name string
		node vnode.Node
		want string
	}{
		{"none", vnode.Node{}, ""},
		{"a limit of 0", vnode.Node{HugePages: vnode.HugePages{2 << 20: 0}}, ""},
		{"two sizes", vnode.Node{HugePages: vnode.HugePages{1 << 30: 2 << 30, 2 << 20: 64 << 20}}, `
staged /s/huge-2MiB 64MiB of 2MiB
staged /s/huge-1GiB 2GiB of 1GiB
/s/huge-2MiB at /dev/hugepages
/s/huge-1GiB at /dev/hugepages-1GiB`},
		{"the greater size alone", vnode.Node{HugePages: vnode.HugePages{1 << 30: 2 << 30, 2 << 20: 0}}, `
staged /s/huge-1GiB 2GiB of 1GiB
/s/huge-1GiB at /dev/hugepages`},
		{"the user's own mount there", vnode.Node{
			HugePages: vnode.HugePages{2 << 20: 64 << 20}, Mounts: []vnode.Mount{{Target: "/dev/hugepages"}},
		}, `
staged /s/huge-2MiB 64MiB of 2MiB`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			staged, in := hugePageMounts(&tt.node, "/s")
			got := ""
			for _, s := range staged {
				got += fmt.Sprintf("\nstaged %s %s of %s", s.At, s.Huge.Size, s.Huge.Page)
			}
			for _, m := range in {
				got += fmt.Sprintf("\n%s at %s", m.Source, m.Target)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
