package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/ids"
	"berth/internal/storage/mounts"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
)

// TestSharedIDs: which ids of the host a node may share depends on the admin, on what the host gave away, and on whether a user
// can become root inside.
func TestSharedIDs(t *testing.T) {
	site := ids.Site{
		List: "/etc/berth/users.yaml", Given: []vnode.IDRange{{From: 165536, Count: 65536}},
		Allowed: []vnode.IDRange{{From: 100500, Count: 99500}, {From: 1500, Count: 1}, {From: 100000, Count: 500}},
	}
	for name, c := range map[string]struct {
		spec string
		init runner.Init
		want string // "" if it is planned
		kind refuse.Kind
	}{
		"none":                        {spec: ``},
		"one":                         {spec: `"users": [{"from": 1500, "count": 1, "as": "same"}]`},
		"two neighbours of the list":  {spec: `"users": [{"from": 100000, "count": 1000, "as": "same"}]`},
		"a private one needs no list": {spec: `"users": [{"from": 300000, "count": 1000, "as": "private"}]`},
		"before the list":             {spec: `"users": [{"from": 1499, "count": 2, "as": "same"}]`, kind: refuse.Cannot, want: "1499 of the host's ids are not in /etc/berth/users.yaml"},
		"behind the list":             {spec: `"users": [{"from": 150000, "count": 100000, "as": "same"}]`, kind: refuse.Cannot, want: "200000-249999 of the host's ids"},
		"of subuid":                   {spec: `"users": [{"from": 165000, "count": 1000, "as": "same"}]`, kind: refuse.Cannot, want: "subgid give ids 165536-231071"},
		"an init, one user":           {spec: `"users": [{"from": 1500, "count": 1, "as": "same"}]`, init: runner.Systemd},
		"an init, many users":         {spec: `"users": [{"from": 100000, "count": 2, "as": "same"}]`, init: runner.Systemd, kind: refuse.Invalid, want: "users[0].count"},
		"an init without su":          {spec: `"users": [{"from": 100000, "count": 2, "as": "same"}], "no_new_privileges": true`, init: runner.Systemd},
	} {
		n := parse(t, strings.TrimSuffix(small+","+c.spec, ","))
		f := facts(v2Host(), "crun")
		f.Devices, f.Mounts, f.Site, f.Command = nil, nil, site, Command{Args: n.Command, Init: c.init}
		_, live, err := All(n, f)
		if refuse.KindOf(err) != c.kind || c.want != "" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		// Ids that were allowed when the node was made may not be allowed at its next start.
		if _, liveErr := Live(n, f, nil); c.want != "" && (liveErr == nil || live != nil) {
			t.Errorf("%s: its start is planned", name)
		}
	}
}

// TestRange: the map of a node follows from its claims.
func TestRange(t *testing.T) {
	users := &ids.Users{Extents: []vnode.IDExtent{
		{From: 1500, Count: 2, As: vnode.SameIDs},
		{From: 100000, Count: 70000, As: vnode.PrivateIDs, Of: vnode.UserIDs},
	}}
	base := uint32(0x50000000)
	claims := []step.Step{&ids.Claim{Base: base}, &ids.Claim{Part: 1, Base: 0x41000000}, &ids.Claim{Part: 2, Base: 0x60000000}, users}
	low := []mounts.IDLine{{Inside: 0, Host: base, Count: 1500}, {Inside: 1500, Host: 1500, Count: 2}, {Inside: 1502, Host: base + 1502, Count: 64034}}
	want := mounts.IDs{
		Base: base, Size: 65536, GIDs: low,
		UIDs: append(append([]mounts.IDLine{}, low...), mounts.IDLine{Inside: 100000, Host: 0x41000000, Count: 65536}, mounts.IDLine{Inside: 165536, Host: 0x60000000, Count: 4464}),
	}
	got, err := Range(claims)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for id, host := range map[uint32]uint32{0: base, 1501: 1501, 165537: 0x60000001} {
		if h, ok := got.User(id); !ok || h != host {
			t.Errorf("user %d is %d on the host, want %d", id, h, host)
		}
	}
	if h, ok := got.User(170000); ok {
		t.Errorf("user 170000 is %d on the host", h)
	}
	one, err := Range(claims[:1])
	if diff := cmp.Diff(mounts.IDs{Base: base, Size: 65536}, one); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if got, err := Range(nil); !got.None() || err != nil {
		t.Errorf("without claims: %+v, %v", got, err)
	}
	for what, claims := range map[string][]step.Step{
		"the first range lacks": {claims[1], claims[2], users},
		"a range between lacks": {claims[0], claims[2], users},
		"the last range lacks":  {claims[0], claims[1], users},
		"all ranges lack":       {users},
		"a range of the host's": {&ids.Claim{Base: 1000}},
	} {
		if got, err := Range(claims); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
}
