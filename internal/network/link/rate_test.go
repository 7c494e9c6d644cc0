package link

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"

	"berth/internal/host/netif"
	"berth/internal/network/shape"
	"berth/internal/spec/vnode"
	"berth/internal/sys/mac"
	"berth/internal/sys/proof"
	"berth/internal/sys/refuse"
	"berth/internal/sys/step"
	"berth/test/testkit"
)

const mbit = vnode.BitRate(1_000_000)

// needShaping skips the test if this kernel lacks a way to limit a rate.
func (b *lab) needShaping(ways ...netif.Way) {
	b.t.Helper()
	asked := map[netif.Way]bool{}
	for _, w := range ways {
		asked[w] = true
	}
	lacks, err := shape.ProbeRates(asked)
	testkit.Must(b.t, err)
	for w, why := range lacks {
		b.t.Skipf("needs a kernel that holds a rate (%s): %s", w, why)
	}
}

// qdiscs lists a link's qdiscs.
func qdiscs(t *testing.T, h *netlink.Handle, l netlink.Link) string {
	t.Helper()
	all, err := h.QdiscList(l)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, q := range all {
		names = append(names, q.Type())
	}
	return strings.Join(names, " ")
}

func rateSteps(steps []step.Step) (found []*shape.Rate) {
	for _, s := range steps {
		if r, ok := s.(*shape.Rate); ok {
			found = append(found, r)
		}
	}
	return found
}

// networks returns one network for each mode that this lab supports, on parents that it makes first.
func (b *lab) networks() map[string]vnode.Network {
	b.t.Helper()
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("up0", 0, mac.Address{}), PeerName: "up0p"})
	b.need(&netlink.Veth{LinkAttrs: netif.Attrs("lent0", 0, mac.Address{}), PeerName: "lent0p"})
	for _, name := range []string{"up0", "up0p", "lent0p"} {
		testkit.Must(b.t, b.h.LinkSetUp(b.get(name)))
	}
	nets := map[string]vnode.Network{
		"bridge": {Mode: vnode.Bridge},
		"phys":   {Mode: vnode.Phys, Parent: "lent0"},
	}
	err := b.h.LinkAdd(&netlink.Macvlan{LinkAttrs: func() netlink.LinkAttrs {
		a := netif.Attrs("mv", 0, mac.Address{})
		a.ParentIndex = b.get("up0").Attrs().Index
		return a
	}(), Mode: netlink.MACVLAN_MODE_BRIDGE})
	if err == nil {
		testkit.Must(b.t, b.h.LinkDel(b.get("mv")))
		nets["macvlan"] = vnode.Network{Mode: vnode.Macvlan, Parent: "up0"}
	} else {
		b.t.Logf("no macvlan here: %v", err)
	}
	return nets
}

// TestRateLife sets, changes, removes and undoes rates in each mode, and checks the kernel's qdiscs after each.
func TestRateLife(t *testing.T) {
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Peer, netif.Ingress)
	for mode, nw := range b.networks() {
		s := b.node(mode)
		nw.Rate = vnode.NetRate{TX: 10*mbit + 5, RX: 20 * mbit}
		steps := s.steps(nw)
		s.do(steps)
		rates := rateSteps(steps)
		if len(rates) != 2 || rates[0].ReadBack != "10Mbit/s" || rates[1].ReadBack != "20Mbit/s" {
			t.Fatalf("%s: %v", mode, rates)
		}
		in, err := rates[0].Open()
		testkit.Must(b.t, err)
		l, err := rates[0].Link(in)
		testkit.Must(b.t, err)
		want := "tbf"
		if mode != "bridge" {
			want = "tbf clsact"
		}
		if got := qdiscs(t, in.Handle, l); got != want {
			t.Errorf("%s: qdiscs %q, not %q", mode, got, want)
		}
		shown, err := shape.ReadRates(rates)
		testkit.Must(b.t, err)
		if !shown[0].Holds || !shown[1].Holds || shown[1].By != "tbf" {
			t.Errorf("%s: %+v", mode, shown)
		}
		// Raise one rate, remove the other, and undo both.
		changed := *rates[0]
		changed.Bits, changed.Asked = 2000*mbit, "2Gbit/s"
		changes := shape.RateChanges(rates, []*shape.Rate{&changed})
		s.do(changes)
		if d := cmp.Diff("net.eth0.tx 10000005bit/s ⇒ 2Gbit/s by tbf", changes[0].String()); d != "" {
			t.Error(d)
		}
		if tx, rx := readBits(t, rates[0]), readBits(t, rates[1]); tx != 2000*mbit || rx != 0 {
			t.Errorf("%s changed: tx %s rx %s", mode, tx, rx)
		}
		if got := strings.TrimSuffix(qdiscs(t, in.Handle, l), " clsact"); got != "tbf" { // clsact carries the spoof check
			t.Errorf("%s: qdiscs after rx=max: %q", mode, got)
		}
		s.undo(changes)
		if tx, rx := readBits(t, rates[0]), readBits(t, rates[1]); tx != 10*mbit || rx != 20*mbit {
			t.Errorf("%s taken back: tx %s rx %s", mode, tx, rx)
		}
		// Without rates the link has its default queue again.
		s.undo([]step.Step{rates[0], rates[1]})
		if got := qdiscs(t, in.Handle, l); strings.Contains(got, "tbf") || strings.Contains(got, "ingress") {
			t.Errorf("%s: qdiscs after undo: %q", mode, got)
		}
		if all, _ := in.LinkList(); len(all) != 2 {
			t.Errorf("%s: links left in the node: %v", mode, all)
		}
		in.Close()
		s.do([]step.Step{rates[0], rates[1]})
		s.do([]step.Step{rates[0], rates[1]}) // again, as for a virtual function that came back
		s.kill()                              // the rest goes with the node
		s.undo(steps)
		if got := b.links(); len(got) != 4 {
			t.Errorf("%s: left: %v", mode, got)
		}
		if got := qdiscs(t, b.h, b.get("lent0")); got != "" {
			t.Errorf("%s: qdisc of the lent link at home: %q", mode, got)
		}
	}
}

func readBits(t *testing.T, r *shape.Rate) vnode.BitRate {
	t.Helper()
	bits, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	return bits
}

// TestRateOfAnother leaves a foreign qdisc alone, and changes nothing in another namespace that has got the pid.
func TestRateOfAnother(t *testing.T) {
	b := newLab(t)
	b.needShaping(netif.Egress)
	s := b.node("a")
	steps := s.steps(vnode.Network{Mode: vnode.Bridge})
	s.do(steps)
	r := &shape.Rate{Inside: netif.Inside{NS: s.ns, If: "eth0"}, Limit: proof.Limit{Key: "net.eth0.tx", Asked: "1Mbit/s"}, Bits: mbit, Way: netif.Egress}
	testkit.Must(b.t, r.Prepare(context.Background()))
	in, err := r.Open()
	testkit.Must(b.t, err)
	defer in.Close()
	l, err := r.Link(in)
	testkit.Must(b.t, err)
	other := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       uint64(mbit) / 8, Limit: 1 << 20, Buffer: 1 << 20,
	}
	testkit.Must(b.t, in.QdiscAdd(other))
	s.undo([]step.Step{r})
	if got := qdiscs(t, in.Handle, l); got != "tbf" {
		t.Errorf("another's qdisc after undo: %q", got)
	}
	if got := readBits(t, r); got != 0 {
		t.Errorf("another's qdisc counts as Berth's: %s", got)
	}
	gone := *r
	gone.Inode++
	testkit.Must(b.t, gone.Undo(context.Background()))
}

func TestRateRefused(t *testing.T) {
	nw := vnode.Network{Name: "eth0", Mode: vnode.Macvlan, Parent: "enp2", Rate: vnode.NetRate{RX: 2000 * mbit}}
	in := input(nw)
	link := in.Facts.Links["enp2"]
	link.Speed = 1000 * mbit
	in.Facts.Links["enp2"] = link
	_, err := Rates(in)
	wantRefusal(t, err, "net.eth0.rx 2Gbit/s is more than the 1Gbit/s of enp2; ask for less, or for max")
	in.Networks[0].Rate.RX = 100 * mbit
	if _, err := Rates(in); err != nil {
		t.Error(err)
	}
	in.Facts.Lacks = map[netif.Way]string{netif.Ingress: "make ifb for eth0: operation not supported"}
	_, err = Rates(in)
	wantRefusal(t, err, "net.eth0.rx: this kernel cannot limit it: make ifb for eth0: operation not supported; "+shapingRemedy)
	for _, bits := range []vnode.BitRate{1, shape.Lowest - 1, shape.Highest + 1, 1 << 62} {
		_, err = Rates(input(vnode.Network{Name: "eth0", Mode: vnode.Bridge, Rate: vnode.NetRate{TX: bits}}))
		if refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s: %v", bits, err)
		}
	}
}

func wantRefusal(t *testing.T, err error, want string) {
	t.Helper()
	if refuse.KindOf(err) != refuse.Cannot || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestRateChangesLeadThere applies the changes between any two sets of rates.
func TestRateChangesLeadThere(t *testing.T) {
	set := rapid.Custom(func(t *rapid.T) vnode.Network {
		rate := rapid.SampledFrom([]vnode.BitRate{0, 10 * mbit, 20 * mbit, 1000 * mbit})
		return vnode.Network{Name: "eth0", Mode: vnode.Bridge, Rate: vnode.NetRate{TX: rate.Draw(t, "tx"), RX: rate.Draw(t, "rx")}}
	})
	rapid.Check(t, func(t *rapid.T) {
		old, err := Rates(input(set.Draw(t, "old")))
		if err != nil {
			t.Fatal(err)
		}
		next, err := Rates(input(set.Draw(t, "new")))
		if err != nil {
			t.Fatal(err)
		}
		now := map[string]vnode.BitRate{}
		for _, r := range old {
			now[r.Key] = r.Bits
		}
		for _, s := range shape.RateChanges(old, next) {
			c := s.(*shape.RateChange)
			if c.Bits == now[c.Key] {
				t.Fatalf("%s changes nothing", c)
			}
			if now[c.Key] = c.Bits; c.Bits == 0 {
				delete(now, c.Key)
			}
		}
		want := map[string]vnode.BitRate{}
		for _, r := range next {
			want[r.Key] = r.Bits
		}
		if d := cmp.Diff(want, now); d != "" {
			t.Fatal(d)
		}
	})
}

// TestNodeCannotChangeItsRate tries from inside, as the node's root without NET_ADMIN.
func TestNodeCannotChangeItsRate(t *testing.T) {
	for _, tool := range []string{"tc", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	b := newLab(t)
	b.needShaping(netif.Egress, netif.Ingress)
	s := b.node("a")
	nw := b.networks()["phys"]
	nw.Rate = vnode.NetRate{TX: 10 * mbit, RX: 10 * mbit}
	steps := s.steps(nw)
	s.do(steps)
	for _, cmd := range []string{
		"tc qdisc del dev eth0 root", "tc qdisc replace dev eth0 root handle be47: tbf rate 10gbit burst 1m limit 10m",
		"tc qdisc add dev eth0 root pfifo", "tc qdisc del dev eth0 ingress", "tc filter del dev eth0 parent ffff:",
		"tc qdisc del dev rx.eth0 root", "ip link del rx.eth0", "ip link set rx.eth0 down",
		"ip link set eth0 address 02:00:00:00:00:01", "ip link set eth0 netns 1",
	} {
		args := append([]string{"-t", strconv.Itoa(s.cmd.Process.Pid), "-U", "-n", "-S", "0", "-G", "0", "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}, strings.Fields(cmd)...)
		out, err := exec.Command("nsenter", args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not permitted") {
			t.Errorf("%s: %v: %s", cmd, err, out)
		}
	}
	for _, r := range rateSteps(steps) {
		testkit.Must(b.t, r.Verify(context.Background()))
	}
	s.undo(steps)
	if _, err := os.Stat(s.ns.Pin); err == nil {
		t.Error("the pin is left")
	}
}
