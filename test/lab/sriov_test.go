package lab_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/lab"
	"berth/test/sample"
	"berth/test/testkit"
)

// host is a machine with an adapter that has virtual functions, and berth.
type host struct {
	*lab.VM
	pf string // the adapter's name
}

// startSRIOV starts machines that are joined on one Ethernet segment, with berth in them and their adapters up.
func startSRIOV(t *testing.T, machines ...lab.Machine) []host {
	t.Helper()
	for i := range machines {
		machines[i].NICs = []lab.NIC{{}}
		if len(machines) == 2 {
			machines[i].NICs[0].Segment = "wire"
		}
	}
	l := lab.Start(t, lab.Options{Machines: machines})
	var hosts []host
	for i := range machines {
		h := host{VM: l.VM(i)}
		install(t, h.VM)
		h.pf = h.OK(t, "cd /sys/class/net; for l in *; do [ -e $l/device/sriov_totalvfs ] && echo $l || true; done")
		h.OK(t, "ip link set "+h.pf+" up")
		hosts = append(hosts, h)
	}
	return hosts
}

// adapter is the part of berth vf ls --json that these tests look at.
type adapter struct {
	Name, PCI, Driver string
	Total             int `json:"total_vfs"`
	VFs               []struct {
		Index                    int
		PCI, Driver, Link, Owner string
		Admin                    struct {
			MAC             string
			VLAN            int
			SpoofChk, Trust bool
			MaxTxRate       int `json:"max_tx_rate"`
		}
	}
}

func (h *host) vfs(t *testing.T) adapter {
	t.Helper()
	return adapterOf(t, h.OK(t, "berth vf ls --json"))
}

func adapterOf(t *testing.T, text string) adapter {
	t.Helper()
	var all []adapter
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		t.Fatalf("%v: %d adapters in\n%s", err, len(all), text)
	}
	return all[0]
}

// home describes the functions by properties that stay the same while no node has them. It asks the machine once: each command
// takes an emulated one a good part of a second.
func (h *host) home(t *testing.T) []string {
	t.Helper()
	text, links, _ := strings.Cut(h.OK(t, "berth vf ls --json; cd /sys/class/net; for l in *; do echo \"= $l $(cat $l/address $l/mtu $l/flags | tr '\\n' ' ')\"; done"), "\n= ")
	at := map[string]string{}
	for line := range strings.SplitSeq(links, "\n= ") {
		name, _, _ := strings.Cut(line, " ")
		at[name] = line
	}
	var all []string
	for _, vf := range adapterOf(t, text).VFs {
		link := "away"
		if vf.Link != "" {
			if link = at[vf.Link]; link == "" {
				t.Errorf("there is no link %s:\n%s", vf.Link, links)
			}
		}
		all = append(all, fmt.Sprintf("%d %s %s: admin %+v owner %q link %s", vf.Index, vf.PCI, vf.Driver, vf.Admin, vf.Owner, link))
	}
	return all
}

// refused runs a command that must end with a code and a sentence, and must not change the result of home.
func (h *host) refused(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	before := h.home(t)
	r := h.Run(t, args...)
	said := strings.Join(strings.Fields(r.Err), " ") // berth wraps long lines
	if r.Code != code || !strings.Contains(said, want) {
		t.Errorf("%v: exit code %d, want %d and %q:\n%s%s", args, r.Code, code, want, r.Out, r.Err)
	}
	if after := h.home(t); !slices.Equal(before, after) {
		t.Errorf("%v changed\n%s\nto\n%s", args, strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// vfNode writes the spec of a node with a virtual function, and returns its file.
func (h *host) vfNode(t *testing.T, name, address, more string) string {
	t.Helper()
	file := "/root/" + name + ".yaml"
	h.Write(t, file, fmt.Sprintf("name: %s\nimage: host\ncommand: [sleep, infinity]\nnetwork:\n- {mode: sriov, parent: %s, address: [%s/24]%s}\n", name, h.pf, address, more))
	return file
}

// mac is the address of a node's interface, as the node sees it.
func (h *host) mac(t *testing.T, node string) string {
	t.Helper()
	return h.OK(t, "berth exec "+node+" -- cat /sys/class/net/eth0/address")
}

// inside runs a script as the host's root in the network namespace of a node.
func (h *host) inside(t *testing.T, node, script string) lab.Result {
	t.Helper()
	h.Write(t, "/root/inside.sh", script)
	return h.Run(t, "nsenter", "-t", fmt.Sprint(show(t, h.VM, node).PID), "-n", "bash", "-e", "/root/inside.sh")
}

// reaches reports whether one of several echo requests from a node is answered.
func (h *host) reaches(t *testing.T, node, address string) bool {
	t.Helper()
	return h.inside(t, node, "until busybox ping -c1 -W1 "+address+" >/dev/null; do [ $SECONDS -lt 90 ]; sleep 0.1; done").Code == 0
}

// TestSRIOV gives nodes of two hosts, joined by a cable, virtual functions of real drivers on an emulated adapter.
func TestSRIOV(t *testing.T) {
	t.Parallel()
	hosts := startSRIOV(t, lab.Machine{CPUs: 2, Memory: 1024}, lab.Machine{CPUs: 1, Memory: 768})
	a, b := &hosts[0], &hosts[1]
	pristine := a.OK(t, "ip -o link; ls /run /etc/systemd/system")
	t.Run("refused without virtual functions", func(t *testing.T) {
		file := a.vfNode(t, "bad", "192.0.2.9", "")
		a.refused(t, 3, "berth vf enable "+a.pf, "berth", "apply", "-f", file)
		a.refused(t, 4, "no link nosuch on this host; adapters with SR-IOV: "+a.pf, "berth", "vf", "enable", "nosuch", "2")
		a.refused(t, 3, "link lo has no SR-IOV", "berth", "vf", "enable", "lo", "2")
		a.refused(t, 2, "can have 1 to 7", "berth", "vf", "enable", a.pf, "8")
		a.refused(t, 2, "not a number", "berth", "vf", "enable", a.pf, "all")
		a.OK(t, "ip addr add 198.51.100.1/24 dev "+a.pf)
		a.refused(t, 5, "carries the SSH session that asks", "env", "SSH_CONNECTION=198.51.100.9 5000 198.51.100.1 22", "berth", "vf", "enable", a.pf, "7")
		a.OK(t, "ip route add default via 198.51.100.9")
		a.refused(t, 5, "carries the host's default route", "berth", "vf", "enable", a.pf, "7")
		a.OK(t, "ip route del default; ip addr flush dev "+a.pf)
	})
	t.Run("docs/start.md", func(t *testing.T) { testStart(t, a, b) })
	for _, h := range []*host{a, b} {
		out := h.OK(t, "berth vf enable "+h.pf+" 7; test -e /etc/systemd/system/multi-user.target.wants/berth-vfs.service; berth vf enable "+h.pf+" 7")
		if !strings.Contains(out, "ExecStart=/usr/local/bin/berth vf restore") || !strings.Contains(out, "unchanged") {
			t.Errorf("berth vf enable said\n%s", out)
		}
	}
	home := a.home(t)
	t.Log(strings.Join(home, "\n"))

	peer := b.vfNode(t, "peer", "192.0.2.2", "")
	b.OK(t, "berth apply -f "+peer)
	t.Run("reach", func(t *testing.T) { testReach(t, a, b) })
	t.Run("an address moves", func(t *testing.T) { testMoves(t, a, b) })
	t.Run("the node cannot change it", func(t *testing.T) { testConfined(t, a) })
	t.Run("bad input", func(t *testing.T) { testRefused(t, a) })
	t.Run("seven at once", func(t *testing.T) { testSeven(t, a) })
	t.Run("reload", func(t *testing.T) { testReload(t, a) })
	t.Run("enforced", func(t *testing.T) { testEnforced(t, a, b) })
	t.Run("killed at each step", func(t *testing.T) { testKilled(t, a) })
	t.Run("killed at random", func(t *testing.T) { testRandom(t, a) })
	if now := a.home(t); !slices.Equal(home, now) {
		t.Errorf("the functions were\n%s\nand are\n%s", strings.Join(home, "\n"), strings.Join(now, "\n"))
	}
	t.Run("disable", func(t *testing.T) {
		a.OK(t, "berth vf disable "+a.pf)
		if now := a.OK(t, "ip -o link; ls /run /etc/systemd/system"); sansBerth(now) != sansBerth(pristine) {
			t.Errorf("it was\n%s\nand is\n%s", pristine, now)
		}
	})
	t.Run("reboot", func(t *testing.T) {
		b.OK(t, "berth rm --force peer")
		want := b.home(t)
		b.Reboot(t)
		b.OK(t, "systemctl start berth-vfs.service") // started at boot; this waits for its end
		if now := b.home(t); !slices.Equal(want, now) {
			t.Errorf("before the reboot\n%s\nafter it\n%s", strings.Join(want, "\n"), strings.Join(now, "\n"))
		}
	})
}

// sansBerth removes lines about files that berth keeps on a host and about values that change by themselves.
func sansBerth(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[0], ":") { // a link: its name and flags
			line = f[1] + "\n"
		}
		if !strings.HasPrefix(line, "berth") && line != "crun\n" {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// testReach sends megabytes from a node to a node on the other host and checks that they use the two functions' own MACs.
func testReach(t *testing.T, a, b *host) {
	a.OK(t, "berth apply -f "+a.vfNode(t, "a", "192.0.2.1", ", mtu: 1400"))
	defer a.OK(t, "berth rm --force a")
	macs := map[string]string{"a": a.mac(t, "a"), "peer": b.mac(t, "peer")}
	if macs["a"] == macs["peer"] {
		t.Errorf("both nodes have MAC %s", macs["a"])
	}
	b.OK(t, "berth exec peer -- sh -c 'iperf3 -s -1 -D >/dev/null 2>&1'")
	// The peer may not listen yet. The last data sent may get lost at the end, so the received bytes count.
	a.OK(t, "while awaiting; do berth exec a -- iperf3 -J -c 192.0.2.2 -t 3 >/root/iperf && exit; done; exit 1")
	var report struct {
		End struct {
			Received struct{ Bytes int } `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(a.OK(t, "cat /root/iperf")), &report); err != nil {
		t.Fatal(err)
	}
	size := report.End.Received.Bytes
	if size < 1<<20 {
		t.Errorf("%d bytes arrived", size)
	}
	for _, c := range []struct {
		at               *host
		node, other, mac string
	}{{a, "a", "192.0.2.2", macs["peer"]}, {b, "peer", "192.0.2.1", macs["a"]}} {
		neigh := c.at.OK(t, "berth exec "+c.node+" -- ip neigh show "+c.other)
		if !strings.Contains(neigh, c.mac) {
			t.Errorf("%s sees its peer as %q, not under MAC %s", c.node, neigh, c.mac)
		}
	}
	// igbvf reads its counters every two seconds.
	testkit.Eventually(t, "the function has sent as many bytes", func() bool {
		return number(t, a.OK(t, "berth exec a -- cat /sys/class/net/eth0/statistics/tx_bytes")) >= size
	})
	testkit.Eventually(t, "the peer's function has received as many bytes", func() bool {
		return number(t, b.OK(t, "berth exec peer -- cat /sys/class/net/eth0/statistics/rx_bytes")) >= size
	})
	if out := a.OK(t, "ls -d /sys/class/net/*/brport /sys/class/net/"+a.pf+"/master 2>/dev/null || true"); out != "" {
		t.Errorf("there are ports of bridges: %s", out)
	}
	if got := a.OK(t, "berth exec a -- cat /sys/class/net/eth0/mtu"); got != "1400" {
		t.Errorf("mtu %s", got)
	}
	vf := a.vfs(t).VFs[0]
	if vf.Owner != "a/eth0" || vf.Link != "" || vf.Admin.MAC != macs["a"] || !vf.Admin.SpoofChk || vf.Admin.Trust {
		t.Errorf("berth vf ls says %+v", vf)
	}
	a.OK(t, "berth stop a; berth start a")
	if got := a.mac(t, "a"); got != macs["a"] {
		t.Errorf("the MAC was %s and is %s after a new start", macs["a"], got)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// testRefused gives berth what it must refuse.
func testRefused(t *testing.T, a *host) {
	a.OK(t, "berth apply -f "+a.vfNode(t, "one", "192.0.2.1", ""))
	defer a.OK(t, "berth rm --force one")
	for _, tt := range []struct {
		code       int
		want, line string
	}{
		{4, "no link nosuch on this host", "{mode: sriov, parent: nosuch}"},
		{3, "adapter lo has no SR-IOV", "{mode: sriov, parent: lo}"},
		{2, "multicast", "{mode: sriov, parent: PF, mac: '01:00:5e:00:00:01'}"},
		{5, "is taken by node one/eth0", "{mode: sriov, parent: PF, mac: '" + a.mac(t, "one") + "'}"},
		{5, "is taken by link " + a.vfs(t).VFs[3].Link, "{mode: sriov, parent: PF, mac: '" + a.vfs(t).VFs[3].Admin.MAC + "'}"},
		{2, "vlan", "{mode: sriov, parent: PF, vlan: 5000}"},
		{3, "is more than the 1Gbit/s of " + a.pf, "{mode: sriov, parent: PF, rate: {tx: 2Gbit/s}}"},
		{3, "mtu 9000 is more than the 1500", "{mode: sriov, parent: PF, mtu: 9000}"},
	} {
		a.Write(t, "/root/bad.yaml", "name: bad\nimage: host\ncommand: [sleep, infinity]\nnetwork:\n- "+strings.ReplaceAll(tt.line, "PF", a.pf)+"\n")
		a.refused(t, tt.code, tt.want, "berth", "apply", "-f", "/root/bad.yaml")
	}
	a.refused(t, 5, "is in use by node one/eth0", "berth", "vf", "disable", a.pf)
	testTakenVFs(t, a)
	a.refused(t, 5, "by way of none", "berth", "vf", "enable", a.pf, "3")
	a.refused(t, 4, "no link nosuch", "berth", "vf", "disable", "nosuch")
	if out := a.OK(t, "berth ls"); strings.Contains(out, "bad") {
		t.Errorf("something is left:\n%s", out)
	}
}

// testTakenVFs lets other users than Berth take virtual functions, one at a time.
func testTakenVFs(t *testing.T, a *host) {
	vf := a.vfs(t).VFs[1].Link
	sriov := a.vfNode(t, "two", "192.0.2.3", "")
	a.Write(t, "/root/macvlan.yaml", "name: two\nimage: host\ncommand: [sleep, infinity]\nnetwork:\n- {mode: macvlan, parent: "+vf+"}\n")
	a.refused(t, 3, vf+" is a virtual function of "+a.pf, "berth", "apply", "-f", "/root/macvlan.yaml")
	for _, tt := range []struct{ use, want, end string }{
		{"ip link add link " + vf + " name on7 type vlan id 7", "1 of " + a.pf + " is in use by the host, as " + vf + " under on7", "ip link del on7"},
		{"ip link add link " + vf + " name on7 type macvlan", "1 of " + a.pf + " is in use by the host, as " + vf + " under on7", "ip link del on7"},
		{
			"ip netns add other; ip link set " + vf + " up; ip link add link " + vf + " name on7 address 02:00:00:00:00:07 netns other type macvlan; ip -n other link set on7 up",
			"1 of " + a.pf + " is in use by a link on " + vf + " in another network namespace, with MAC 02:00:00:00:00:07",
			"ip -n other link del on7; ip netns del other; umount /run/netns; rmdir /run/netns; ip link set " + vf + " down",
		},
	} {
		a.OK(t, "berth stop one; "+tt.use)
		a.refused(t, 5, tt.want, "berth", "vf", "disable", a.pf, "--yes")
		a.OK(t, "berth start one; berth apply -f "+sriov)
		if owner := a.vfs(t).VFs[2].Owner; owner != "two/eth0" {
			t.Errorf("with %s, function 2 is %q's", tt.use, owner)
		}
		a.OK(t, "berth rm --force two; "+tt.end)
	}
	a.OK(t, "berth stop one; ip link set "+vf+" up; ip route add default dev "+vf)
	a.refused(t, 5, "carries the host's default route", "berth", "vf", "disable", a.pf)
	a.OK(t, "ip route del default; ip link set "+vf+" down; berth start one")
	// A MAC that the host takes while the node that has claimed it is stopped.
	mac := a.mac(t, "one")
	a.OK(t, "berth stop one; ip link add br7 address "+mac+" type bridge")
	a.refused(t, 5, "is that of link br7 now", "berth", "start", "one")
	a.OK(t, "ip link del br7; berth start one")
}

// testSeven starts as many nodes as there are functions, at once, and one more.
func testSeven(t *testing.T, a *host) {
	for i := range 8 {
		a.vfNode(t, fmt.Sprintf("n%d", i), fmt.Sprintf("192.0.2.%d", 11+i), "")
	}
	a.OK(t, "for i in 0 1 2 3 4 5 6; do berth apply -f /root/n$i.yaml & p[i]=$!; done; for i in 0 1 2 3 4 5 6; do wait ${p[i]}; done")
	owners := map[string]bool{}
	for _, vf := range a.vfs(t).VFs {
		if vf.Owner == "" || owners[vf.Owner] {
			t.Errorf("function %d is %q's", vf.Index, vf.Owner)
		}
		owners[vf.Owner] = true
	}
	a.refused(t, 5, "no free virtual function on "+a.pf, "berth", "apply", "-f", "/root/n7.yaml")
	if out := a.OK(t, "berth ls"); strings.Contains(out, "n7") {
		t.Errorf("the refused node is there:\n%s", out)
	}
	for i := range 7 {
		if node := fmt.Sprintf("n%d", i); !a.reaches(t, node, "192.0.2.2") {
			t.Errorf("%s does not reach its peer", node)
		}
	}
	a.OK(t, "berth rm --force n0 n1 n2 n3 n4 n5 n6")
}

// testReload unloads and reloads the drivers while nodes run.
func testReload(t *testing.T, a *host) {
	macs := map[string]string{}
	for i := range 2 {
		node := fmt.Sprintf("n%d", i)
		a.OK(t, "berth apply -f "+a.vfNode(t, node, fmt.Sprintf("192.0.2.%d", 11+i), ", rate: {tx: 200Mbit/s, rx: 200Mbit/s}, gateway: 192.0.2.2"))
		macs[node] = a.mac(t, node)
	}
	defer a.OK(t, "berth rm --force n0 n1")
	a.OK(t, "berth set n0 net.eth0.tx=150Mbit/s")
	state := func() string {
		return a.OK(t, "for n in n0 n1; do berth exec $n -- ip -o addr show dev eth0 scope global | cut -d' ' -f2-; berth exec $n -- ip route; berth show $n | grep -A9 LIMIT; done")
	}
	before := state()
	spoofCheck := func(node string) bool {
		return strings.Contains(a.inside(t, node, "tc filter show dev eth0 egress").Out, "berth_antispoof")
	}
	check := func(t *testing.T) {
		t.Helper()
		for node, want := range macs {
			if got := a.mac(t, node); got != want {
				t.Errorf("%s had MAC %s and has %s", node, want, got)
			}
			if !a.reaches(t, node, "192.0.2.2") {
				t.Errorf("%s does not reach its peer", node)
			}
			if !spoofCheck(node) {
				t.Errorf("%s sends without its spoof check", node)
			}
			if out := a.OK(t, "berth show "+node); !strings.Contains(out, "spoof check ") {
				t.Errorf("berth show %s:\n%s", node, out)
			}
		}
		if after := state(); after != before {
			t.Errorf("it was\n%s\nand is\n%s", before, after)
		}
	}
	const noKeeper = "kill -9 $(pgrep -x berth-keeper)\n"
	reload := map[string]string{"igbvf": "rmmod igbvf; modprobe igbvf", "igb": "rmmod igb; modprobe igb"}
	for _, c := range sample.Some(sample.Of(t), 2, "igbvf, repair", "igbvf, keeper", "igb, repair", "igb, keeper") {
		driver, by, _ := strings.Cut(c, ", ")
		t.Run(c, func(t *testing.T) {
			if by == "repair" {
				t.Log(a.OK(t, noKeeper+reload[driver]+"\nudevadm settle; berth repair"))
			} else {
				a.OK(t, "pgrep -x berth-keeper; "+reload[driver])
				a.OK(t, "while awaiting; do for n in n0 n1; do berth exec $n -- test -e /sys/class/net/eth0 || continue 2; done; exit; done; cat /run/berth/keeper.log; exit 1")
				testkit.Eventually(t, "the keeper puts the addresses, routes and limits back", func() bool { return state() == before })
				for node := range macs {
					testkit.Eventually(t, "the keeper puts the spoof check of "+node+" back", func() bool { return spoofCheck(node) })
				}
			}
			check(t)
		})
	}
	t.Run("the driver is gone", func(t *testing.T) {
		a.OK(t, noKeeper+"rmmod igbvf")
		if r := a.Run(t, "berth", "repair"); r.Code == 0 || !strings.Contains(strings.Join(strings.Fields(r.Err), " "), "no driver for it is loaded") {
			t.Errorf("berth repair: %d %s%s", r.Code, r.Out, r.Err)
		}
		a.OK(t, "berth stop n1; modprobe igbvf; udevadm settle; berth repair; berth start n1")
		check(t)
	})
}
