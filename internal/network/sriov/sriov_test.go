package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

// drawn makes a sysfs tree: an adapter with three virtual functions, one with none yet, and one without SR-IOV.
func drawn(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(path, to string) {
		t.Helper()
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	adapter := func(name, pci, total string) {
		dev := "devices/pci0000:00/" + pci
		put(dev+"/sriov_totalvfs", total)
		put(dev+"/sriov_numvfs", "0")
		put(dev+"/numa_node", "-1")
		link(dev+"/driver", "../../../bus/pci/drivers/igb")
		put(dev+"/net/"+name+"/address", "52:54:00:77:01:01")
		put(dev+"/net/"+name+"/mtu", "1500")
		put(dev+"/net/"+name+"/flags", "0x1003")
		put(dev+"/net/"+name+"/carrier", "1")
		put(dev+"/net/"+name+"/speed", "1000")
		link(dev+"/net/"+name+"/device", "../..")
		link("class/net/"+name, "../../"+dev+"/net/"+name)
		link("bus/pci/devices/"+pci, "../../../"+dev)
	}
	adapter("enp1s0", "0000:01:00.0", "7")
	adapter("enp2s0", "0000:02:00.0", "7")
	adapter("enp3s0", "0000:03:00.0", "0")
	put("devices/virtual/net/lo/address", "00:00:00:00:00:00")
	link("class/net/lo", "../../devices/virtual/net/lo")
	for i, vf := range []struct{ pci, driver, net string }{
		{"0000:01:10.0", "igbvf", "enp1s0v0"}, {"0000:01:10.4", "igbvf", ""}, {"0000:01:11.0", "", ""},
	} {
		dev := "devices/pci0000:00/" + vf.pci
		put(dev+"/vendor", "0x8086")
		link(dev+"/physfn", "../0000:01:00.0")
		if vf.driver != "" {
			link(dev+"/driver", "../../../bus/pci/drivers/"+vf.driver)
		}
		if vf.net != "" {
			put(dev+"/net/"+vf.net+"/address", "02:00:00:00:00:01")
			link(dev+"/net/"+vf.net+"/device", "../..")
			link("class/net/"+vf.net, "../../"+dev+"/net/"+vf.net)
		}
		link("bus/pci/devices/"+vf.pci, "../../../"+dev)
		link(fmt.Sprintf("devices/pci0000:00/0000:01:00.0/virtfn%d", i), "../"+vf.pci)
	}
	return sys
}

func first() PF {
	return PF{
		Name: "enp1s0", PCI: "0000:01:00.0", Driver: "igb", NUMA: -1, MAC: mac.Must("52:54:00:77:01:01"), MTU: 1500,
		Up: true, Carrier: true, Speed: 1000, Total: 7, VFs: []VF{
			{Index: 0, PCI: "0000:01:10.0", Driver: "igbvf", Link: "enp1s0v0"},
			{Index: 1, PCI: "0000:01:10.4", Driver: "igbvf"},
			{Index: 2, PCI: "0000:01:11.0"},
		},
	}
}

func TestList(t *testing.T) {
	got, err := List(drawn(t))
	if err != nil {
		t.Fatal(err)
	}
	second := first()
	second.Name, second.PCI, second.VFs = "enp2s0", "0000:02:00.0", []VF{}
	if d := cmp.Diff([]PF{first(), second}, got, cmpopts.EquateComparable(mac.Address{})); d != "" {
		t.Error(d)
	}
}

func TestFind(t *testing.T) {
	sys := drawn(t)
	if pf, err := Find(sys, "enp1s0"); err != nil || !cmp.Equal(pf, first(), cmpopts.EquateComparable(mac.Address{})) {
		t.Errorf("%+v, %v", pf, err)
	}
	for _, tt := range []struct {
		name string
		kind refuse.Kind
		want string
	}{
		{"enp9", refuse.NotFound, "no link enp9 on this host; adapters with SR-IOV: enp1s0, enp2s0"},
		{"", refuse.NotFound, `"" is not the name of a link`},
		{"../net/enp1s0", refuse.NotFound, `"../net/enp1s0" is not the name of a link`},
		{"enp3s0", refuse.Cannot, "link enp3s0 has no SR-IOV: its device has no sriov_totalvfs above 0; use one that has it (enp1s0, enp2s0), or another mode"},
		{"lo", refuse.Cannot, "link lo has no SR-IOV: its device has no sriov_totalvfs above 0; use one that has it (enp1s0, enp2s0), or another mode"},
	} {
		if _, err := Find(sys, tt.name); err == nil || refuse.KindOf(err) != tt.kind || err.Error() != tt.want {
			t.Errorf("%q: %v", tt.name, err)
		}
	}
}

func TestOf(t *testing.T) {
	sys := drawn(t)
	pf, vf, err := Of(sys, "0000:01:10.4")
	if err != nil || pf.Name != "enp1s0" || vf.Index != 1 {
		t.Errorf("%s %d, %v", pf.Name, vf.Index, err)
	}
	if _, _, err := Of(sys, "0000:09:10.4"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a function that is gone: %v", err)
	}
	if _, _, err := Of(sys, "0000:02:00.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a function that is no virtual one: %v", err)
	}
}

func TestAdapter(t *testing.T) {
	sys := drawn(t)
	for pci, want := range map[string]string{"0000:01:10.0": "enp1s0", "0000:01:00.0": "", "0000:09:00.0": ""} {
		if got := Adapter(sys, pci); got != want {
			t.Errorf("%s is a function of %q, not %q", pci, got, want)
		}
	}
	// The adapter has no link on the host: it is lent, or has no driver.
	if err := os.RemoveAll(filepath.Join(sys, "devices/pci0000:00/0000:01:00.0/net")); err != nil {
		t.Fatal(err)
	}
	if got := Adapter(sys, "0000:01:10.0"); got != "0000:01:00.0" {
		t.Errorf("without a link: %q", got)
	}
}

func TestDriver(t *testing.T) {
	sys := drawn(t)
	probe := filepath.Join(sys, "bus/pci/drivers_probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	auto := filepath.Join(sys, "devices/pci0000:00/0000:01:00.0/sriov_drivers_autoprobe")
	if err := os.WriteFile(auto, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := bind(sys, "0000:01:11.0"); !errors.Is(err, errNoDriver) {
		t.Errorf("a driver that does not come: %v", err)
	}
	for path, want := range map[string]string{probe: "0000:01:11.0", auto: "1"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", filepath.Base(path), b, err)
		}
	}
	if err := bind(sys, "0000:01:10.0"); err != nil {
		t.Errorf("one that has a driver: %v", err)
	}
}

func TestLeases(t *testing.T) {
	boot, err := step.BootID()
	if err != nil {
		t.Skipf("needs /proc: %v", err)
	}
	run := t.TempDir()
	d := Leases(filepath.Join(t.TempDir(), "leases"))
	a := Lease{Owner: Owner{Node: "a", If: "eth0", Run: run}, PCI: "0000:01:10.0", Token: "t1", Boot: boot}
	if d.Held(a) || d.Held(Lease{}) {
		t.Error("held before it was taken")
	}
	testkit.Must(t, d.Release("t1"))
	testkit.Must(t, d.Take(a))
	if got, ok := d.Read(a.PCI); !ok || got != a {
		t.Errorf("%+v", got)
	}
	if got, ok := d.Of(a.Owner); !ok || got != a {
		t.Errorf("%+v", got)
	}
	var limit unix.Rlimit // without a file descriptor left the boot id cannot be read
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}))
	_, bootErr := step.BootID()
	_, held := d.Read(a.PCI)
	testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(bootErr, unix.EMFILE) || !held {
		t.Errorf("an error (%v) while it was read ended the lease", bootErr)
	}
	pf := first()
	d.Name(&pf)
	if pf.VFs[0].Owner != "a/eth0" || pf.VFs[1].Owner != "" {
		t.Errorf("%+v", pf.VFs)
	}
	for range 2 {
		testkit.Must(t, d.Reserve(a, mac.Must("02:00:00:00:00:01"), mac.Must("02:00:00:00:00:02")))
	}
	who := "virtual function 0000:01:10.0, as soon as node a/eth0 gives it back"
	want := map[mac.Address]string{mac.Must("02:00:00:00:00:01"): who, mac.Must("02:00:00:00:00:02"): who}
	if got := d.Reserved(); !maps.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	if got, ok := d.Of(a.Owner); !ok || got != a {
		t.Errorf("with its MACs reserved: %+v", got)
	}
	// Releasing the first lease does not end a later lease of the same owner.
	later := a
	later.Token = "t2"
	testkit.Must(t, d.Take(later))
	if got := d.Reserved(); len(got) > 0 {
		t.Errorf("reserved for a lease that has ended: %v", got)
	}
	testkit.Must(t, d.Reserve(later, mac.Must("02:00:00:00:00:01")))
	testkit.Must(t, d.Release("t1"))
	if len(d.Reserved()) != 1 {
		t.Error("the end of an old lease ended what is reserved for the new one")
	}
	if d.Held(a) || !d.Held(later) {
		t.Error("the end of an old lease touched the new one")
	}
	testkit.Must(t, d.Release("t2"))
	if left, err := os.ReadDir(string(d)); err != nil || len(left) > 0 {
		t.Errorf("released and still there: %v %v", left, err)
	}
	old, dead := a, a
	old.Boot = "another"
	dead.Run = filepath.Join(run, "gone")
	for _, l := range []Lease{old, dead} {
		testkit.Must(t, d.Take(l))
		if _, ok := d.Read(l.PCI); ok {
			t.Errorf("stale and held: %+v", l)
		}
	}
}

func TestWishes(t *testing.T) {
	d := Wishes(filepath.Join(t.TempDir(), "vfs"))
	if all, err := d.All(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	want := Wish{PF: "enp1s0", PCI: "0000:01:00.0", VFs: 7}
	for _, set := range []bool{false, true} {
		want.Set = set
		if err := d.Keep(want); err != nil {
			t.Fatal(err)
		}
		if all, err := d.All(); err != nil || !cmp.Equal(all, []Wish{want}) {
			t.Errorf("%v, %v", all, err)
		}
	}
	damaged := filepath.Join(string(d), "0000:02:00.0") // as after a power cut
	if err := os.WriteFile(damaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := d.All(); err == nil || !strings.Contains(err.Error(), damaged) || !cmp.Equal(all, []Wish{want}) {
		t.Errorf("beside an empty one: %v, %v", all, err)
	}
	if err := os.Remove(damaged); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Forget(want.PCI); err != nil {
			t.Error(err)
		}
	}
	if all, err := d.All(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestDeriveMAC(t *testing.T) {
	base := mac.Must("52:54:00:77:01:01")
	seen := map[mac.Address]bool{}
	for i := range 256 {
		for attempt := range 4 {
			derived := DeriveMAC(base, i, attempt)
			if seen[derived] {
				t.Errorf("%s twice", derived)
			}
			seen[derived] = true
		}
	}
	if got, want := DeriveMAC(base, 0, 0), mac.Must("1e:4f:8b:15:f1:5f"); got != want {
		t.Errorf("%s, not %s: every virtual function would change its MAC", got, want)
	}
}

func TestEnableRefuses(t *testing.T) {
	sys := drawn(t)
	for _, tt := range []struct {
		n    int
		kind refuse.Kind
	}{{0, refuse.Invalid}, {8, refuse.Invalid}, {-1, refuse.Invalid}, {7, refuse.Busy}} {
		if err := Enable(t.Context(), sys, first(), tt.n, nil); refuse.KindOf(err) != tt.kind {
			t.Errorf("%d: %v", tt.n, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(sys, "class/net/enp1s0/device/sriov_numvfs")); err != nil || string(b) != "0\n" {
		t.Errorf("it wrote: %q %v", b, err)
	}
}

// TestAdminHolds: each setting that every driver has is compared.
func TestAdminHolds(t *testing.T) {
	want := Admin{MAC: mac.Must("02:00:00:00:00:01"), VLAN: 5, QoS: 1, SpoofChk: true}
	for what, change := range map[string]func(*Admin){
		"MAC": func(a *Admin) { a.MAC = mac.Must("02:00:00:00:00:02") }, "VLAN": func(a *Admin) { a.VLAN = 6 }, "QoS": func(a *Admin) { a.QoS = 2 },
		"spoof check": func(a *Admin) { a.SpoofChk = false }, "trust": func(a *Admin) { a.Trust = true },
	} {
		now := want
		if !want.Holds(now) {
			t.Error("it does not hold itself")
		}
		if change(&now); want.Holds(now) {
			t.Errorf("%s differs, and it holds", what)
		}
	}
}
