package vnode

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// full returns a valid node that uses most keys.
func full() *Node {
	swap, numa, userns := Bytes(0), 0, true
	return &Node{
		Name:      "wn-001",
		Image:     Image{Kind: OCILayoutImage, Ref: "/images/worker"},
		Hostname:  "wn-001.example.org",
		Class:     Batch,
		Command:   []string{"/sbin/init"},
		Restart:   OnFailure,
		Autostart: true,
		CPU:       CPU{Weight: 100, Max: 1500, Set: "0-1", NUMA: &numa},
		Memory:    Memory{Max: 4 << 30, High: 3 << 30, Low: 1 << 30, Swap: &swap},
		HugePages: HugePages{2 << 20: 512 << 20},
		PIDs:      4096,
		RLimits:   RLimits{"nofile": 20000},
		IO: []IO{
			{Name: "data", Device: "/dev/sdb", Weight: 100, Read: IORate{Rate: 200e6, IOPS: 5000}, Write: IORate{Rate: 100e6, IOPS: 9}},
			{Name: "var", Path: "/var/tmp"},
			{Name: "eos", Path: "/eos-cache"},
		},
		Network: []Network{
			{
				Name: "eth0", Mode: SRIOV, Parent: "enp4s0f0", MAC: "auto", Address: []string{"192.0.2.10/24", "2001:db8::10/64"},
				Gateway: "192.0.2.1", Routes: []Route{{To: "198.51.100.0/24", Via: "192.0.2.2"}}, MTU: 9000, VLAN: 120,
				Rate: NetRate{TX: 1e9, RX: 1e9},
			},
			{Name: "eth1", Mode: Bridge, MAC: "02:00:5e:10:00:01"},
		},
		Devices: []Device{{Path: "/dev/fuse"}, {Path: "/dev/sdc", As: "/dev/sdx", Access: "rwm"}, {Path: "/dev/disk/by-path/*-sas-*"}},
		Mounts: []Mount{{Source: "/eos", Target: "/eos", Gateway: "bind", ReadOnly: true, Map: Identity}, {
			Source: "[2001:db8::1]:/export", Target: "/data", Gateway: NFSGateway, Via: ViaHost, Options: Options{"vers": "4.2", "hard": "true"}, Map: Identity,
		}},
		Scratch:       []Scratch{{Target: "/tmp", Size: 20 << 30, Pool: "vg0"}},
		Delta:         Delta{Size: 4 << 30, In: OnDisk},
		UserNamespace: &userns,
	}
}

func TestValidateSound(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]*Node{
		"full":    full(),
		"least":   {Name: "a", Image: Image{Kind: HostImage}, Command: []string{"/bin/true"}},
		"only lo": {Name: "a", Image: Image{Kind: DirImage, Ref: "/r"}, Network: []Network{{Mode: None}}},
		"dhcp": {Name: "a", Image: Image{Kind: DirImage, Ref: "/r"}, Network: []Network{
			{DHCP: true, Address: []string{"2001:db8::10/64"}, Gateway: "2001:db8::1", Routes: []Route{{To: "198.51.100.0/24", Via: "192.0.2.2"}}},
			{DHCP: true},
		}},
		"no defaults": {Name: "a", Image: Image{Kind: DirImage, Ref: "/r"}, Network: []Network{{}, {}}},
	} {
		if got := Validate(n); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	image := func(s string) func(*Node) {
		return func(n *Node) { n.Image, _ = ParseImage(s) }
	}
	nat := func(f func(*Network)) func(*Node) {
		return func(n *Node) {
			n.Network[0].Gateway = ""
			n.Network[1] = Network{Name: "eth1", Mode: NAT}
			f(&n.Network[1])
		}
	}
	eth := func(f func(*Network)) func(*Node) { return func(n *Node) { f(&n.Network[0]) } }
	used := map[string]bool{}
	for _, c := range []struct {
		want   string // check and field
		change func(*Node)
	}{
		{"values class", func(n *Node) { n.Class = "best" }},
		{"values restart", func(n *Node) { n.Restart = "no" }},
		{"values cpu.weight", func(n *Node) { n.CPU.Weight = 10001 }},
		{"values cpu.weight", func(n *Node) { n.CPU.Weight = -1 }},
		{"values cpu.numa", func(n *Node) { v := -1; n.CPU.NUMA = &v }},
		{"values memory.swap", func(n *Node) { v := Bytes(-1); n.Memory.Swap = &v }},
		{"values pids", func(n *Node) { n.PIDs = 5e6 }},
		{"values io[0].weight", func(n *Node) { n.IO[0].Weight = 20000 }},
		{"values network[0].mode", eth(func(w *Network) { w.Mode = "veth" })},
		{"values network[0].mtu", eth(func(w *Network) { w.MTU = 65536 })},
		{"values network[0].vlan", eth(func(w *Network) { w.VLAN = 4095 })},
		{"network-vlan network[0].vlan", eth(func(w *Network) { w.Mode, w.Parent = Bridge, "" })},
		{"network-vlan network[0].vlan", eth(func(w *Network) { w.Mode = Phys })},
		{"values mounts[0].gateway", func(n *Node) { n.Mounts[0].Gateway = "smb" }},
		{"values mounts[0].map", func(n *Node) { n.Mounts[0].Map = "squash" }},
		{"values delta.in", func(n *Node) { n.Delta.In = "ram" }},
		{"text mounts[0].source", func(n *Node) { n.Mounts[0].Source = "/a\nb" }},
		{"text image", func(n *Node) { n.Image.Ref = "/a\x00b" }},
		{"name name", func(n *Node) { n.Name = "" }},
		{"name name", func(n *Node) { n.Name = "-a" }},
		{"name name", func(n *Node) { n.Name = "a-" }},
		{"name name", func(n *Node) { n.Name = "A" }},
		{"name name", func(n *Node) { n.Name = "a-name-that-is-longer-than-forty-eight-bytes-12345" }},
		{"hostname hostname", func(n *Node) { n.Hostname = "a_b" }},
		{"hostname hostname", func(n *Node) { n.Hostname = "a..b" }},
		{"image image", func(n *Node) { n.Image = Image{} }},
		{"image image", image("oci:a b")},
		{"image image", image("file:/root.img")},
		{"image image", func(n *Node) { n.Image = Image{Kind: DirImage} }},
		{"command command", func(n *Node) { n.Image, n.Command = Image{Kind: HostImage}, nil }},
		{"command command[0]", func(n *Node) { n.Command = []string{""} }},
		{"command command[1]", func(n *Node) { n.Command = []string{"a", "\x00"} }},
		{"user user", func(n *Node) { n.User = "a:b:c" }},
		{"user user", func(n *Node) { n.User = ":web" }},
		{"user user", func(n *Node) { n.User = "a b" }},
		{"env env.A=B", func(n *Node) { n.Env = Env{"A=B": "1"} }},
		{"env env.A", func(n *Node) { n.Env = Env{"A": "\x00", "B": "line\nline"} }},
		{"workdir workdir", func(n *Node) { n.Workdir = "srv" }},
		{"env-from env_from", func(n *Node) { n.EnvFrom = "secrets" }},
		{"privileges no_new_privileges", func(n *Node) { n.NoNewPrivileges, n.UserNamespace = new(bool), new(bool) }},
		{"users users[0].from", users(IDExtent{Count: 1, As: SameIDs})},
		{"users users[0].count", users(IDExtent{From: 1500, As: SameIDs})},
		{"users users[1].as", users(IDExtent{From: 1500, Count: 1, As: SameIDs}, IDExtent{From: 1600, Count: 1})},
		{"values users[0].as", users(IDExtent{From: 1500, Count: 1, As: "other"})},
		{"values users[0].of", users(IDExtent{From: 1500, Count: 1, As: SameIDs, Of: "user"})},
		{"values users[0].from", users(IDExtent{From: 1 << 31, Count: 1, As: SameIDs})},
		{"users users[0].count", users(IDExtent{From: 1<<31 - 1, Count: 2, As: PrivateIDs})},
		{"users users[0].from", users(IDExtent{From: 60000, Count: 2000, As: SameIDs})}, // DynamicUser
		{"users users[0].from", users(IDExtent{From: 65534, Count: 1, As: SameIDs})},
		{"users users[0].from", users(IDExtent{From: 42, Count: 1, As: SameIDs, Of: GroupIDs})},
		{"users users[0].from", users(IDExtent{From: FirstOwn - 1, Count: 2, As: SameIDs})},
		{"users users[0].from", users(IDExtent{From: 1500, Count: 1, As: PrivateIDs})},
		{"users users[1]", users(IDExtent{From: 70000, Count: 10, As: SameIDs}, IDExtent{From: 70009, Count: 1, As: PrivateIDs})},
		{"values users[0].from", users(IDExtent{From: -5, Count: 1, As: SameIDs})},
		{"users users", users(IDExtent{From: 100000, Count: MostOwnIDs + 1, As: PrivateIDs})},
		{"mounts mounts[0].gateway", func(n *Node) { // of one user
			n.Users = []IDExtent{{From: 100000, Count: 2, As: SameIDs}}
			n.Mounts = []Mount{{Source: "192.0.2.1:/", Target: "/data", Gateway: SSHFSDirectGateway}}
		}},
		{"users users", func(n *Node) { // a line of the map for each, and one for each gap
			for i := range 171 {
				n.Users = append(n.Users, IDExtent{From: 1000 + 2*i, Count: 1, As: SameIDs})
			}
		}},
		{"users users", func(n *Node) {
			n.UserNamespace, n.Users = new(bool), []IDExtent{{From: 1500, Count: 1, As: SameIDs}}
		}},
		{"users users[1].count", func(n *Node) {
			n.NoNewPrivileges = new(bool)
			n.Users = []IDExtent{{From: 1500, Count: 1, As: SameIDs}, {From: 1600, Count: 2, As: SameIDs, Of: GroupIDs}}
		}},
		{"users users[2]", func(n *Node) {
			n.NoNewPrivileges = new(bool)
			n.Users = []IDExtent{{From: 1500, Count: 1, As: SameIDs}, {From: 1600, Count: 1, As: SameIDs, Of: GroupIDs}, {From: 1601, Count: 1, As: SameIDs}}
		}},
		{"health health.command", func(n *Node) { n.Health = Health{Retries: 2} }},
		{"health health.command[0]", func(n *Node) { n.Health = Health{Command: []string{""}} }},
		{"health health.every", func(n *Node) { d := Duration(1e8); n.Health = Health{Command: []string{"c"}, Every: &d} }},
		{"health health.timeout", func(n *Node) { n.Health = Health{Command: []string{"c"}, Timeout: new(Duration)} }},
		{"health health.restart", func(n *Node) { n.Restart = ""; n.Health = Health{Command: []string{"c"}, Restart: true} }},
		{"values health.retries", func(n *Node) { n.Health = Health{Command: []string{"c"}, Retries: 1001} }},
		{"labels labels.a=b", func(n *Node) { n.Labels = Labels{"a=b": "c"} }},
		{"labels labels.a", func(n *Node) { n.Labels = Labels{"a": strings.Repeat("x", 257)} }},
		{"stop stop.signal", func(n *Node) { n.Stop.Signal = "SIGNOT" }},
		{"tmpfs tmpfs[0].target", func(n *Node) { n.Tmpfs = []Tmpfs{{Target: "/dev/shm"}} }},
		{"tmpfs tmpfs[0].size", func(n *Node) { n.Tmpfs = []Tmpfs{{Target: "/t", Size: 64}} }},
		{"tmpfs tmpfs[0].mode", func(n *Node) { n.Tmpfs = []Tmpfs{{Target: "/t", Mode: "0888"}} }},
		{"targets-unique tmpfs[0].target", func(n *Node) { n.Tmpfs = []Tmpfs{{Target: "/eos"}} }},
		{"sysctls sysctls.kernel.core_pattern", func(n *Node) { n.Sysctls = SysctlMap{"kernel.core_pattern": "|/x"} }},
		{"sysctls sysctls.net.ipv4.ip_forward", func(n *Node) { n.Sysctls = SysctlMap{"net.ipv4.ip_forward": "1"} }},
		{"sysctls sysctls.kernel.sem", func(n *Node) { n.Sysctls = SysctlMap{"kernel.sem": " "} }},
		{"cpu cpu.set", func(n *Node) { n.CPU.Set = "2-1" }},
		{"cpu cpu.set", func(n *Node) { n.CPU.Set = "0,1" }},
		{"memory memory.high", func(n *Node) { n.Memory.High = 5 << 30 }},
		{"memory memory.low", func(n *Node) { n.Memory.Low = 5 << 30 }},
		{"memory memory.low", func(n *Node) { n.Memory.Low = 4 }},
		{"hugepages hugepages.3MiB", func(n *Node) { n.HugePages = HugePages{3 << 20: 3 << 20} }},
		{"hugepages hugepages.2MiB", func(n *Node) { n.HugePages = HugePages{2 << 20: 3 << 20} }},
		{"rlimits rlimits.files", func(n *Node) { n.RLimits = RLimits{"files": 1} }},
		{"io io[0]", func(n *Node) { n.IO[0].Path = "/srv" }},
		{"io io[0]", func(n *Node) { n.IO[0].Device = "" }},
		{"io io[0].device", func(n *Node) { n.IO[0].Device = "sdb" }},
		{"io io[1].path", func(n *Node) { n.IO[1].Path = "/srv/" }},
		{"io io[1].name", func(n *Node) { n.IO[1].Name = "a.b" }},
		{"io io[2].filesystem", func(n *Node) { n.IO[2].Path, n.IO[2].Filesystem, n.Mounts[1].Via = "", "/eos", "" }},
		{"io-filesystem io[2].filesystem", func(n *Node) { n.IO[2].Path, n.IO[2].Filesystem = "", "shared" }},
		{"io-filesystem io[2].per_server", func(n *Node) { n.IO[2].PerServer = true }},
		{"io-engine io[0].model", func(n *Node) { n.IO[0].Model = "rbps=1" }},
		{"io-engine io[2].engine", func(n *Node) {
			n.IO[2].Path, n.IO[2].Filesystem, n.Mounts[1].Via = "", "shared", ""
			n.IO[2].Engine = BFQ
		}},
		{"io-unique io[1].name", func(n *Node) { n.IO[1].Name = "data" }},
		{"io-unique io[2].path", func(n *Node) { n.IO[2] = IO{Name: "eos", Path: "/var/tmp"} }},
		{"network-mode network[0].parent", eth(func(w *Network) { w.Parent = "" })},
		{"network-mode network[0].parent", eth(func(w *Network) { w.Parent = "a-name-over-fifteen" })},
		{"network-mode network[0].mac", func(n *Node) { n.Network = []Network{{Mode: None, MAC: "auto"}} }},
		{"network-mode network[0].dhcp", func(n *Node) { n.Network = []Network{{Mode: None, DHCP: true}} }},
		{"network-mode network[1].mode", func(n *Node) { n.Network[1] = Network{Mode: None} }},
		{"network-names network[0].name", eth(func(w *Network) { w.Name = "lo" })},
		{"network-names network[0].name", eth(func(w *Network) { w.Name = "eth0.1" })},
		{"network-names network[1].name", func(n *Node) { n.Network[0].Name, n.Network[1].Name = "eth1", "" }},
		{"network-mac network[0].mac", eth(func(w *Network) { w.MAC = "01:00:5e:00:00:01" })},
		{"network-mac network[0].mac", eth(func(w *Network) { w.MAC = "00:00:00:00:00:00" })},
		{"network-mac network[0].mac", eth(func(w *Network) { w.MAC = "02-00-00-00-00-01" })},
		{"network-mac network[0].mac", eth(func(w *Network) { w.MAC = "02:00:00:00:00:00:00:01" })},
		{"network-mac network[0].mac", eth(func(w *Network) { w.MAC = "pool A" })},
		{"network-mac network[1].mac", eth(func(w *Network) { w.MAC = "02:00:5E:10:00:01" })},
		{"network-addresses network[0].address[2]", addAddress("192.0.2.11")},
		{"network-addresses network[0].address[2]", addAddress("198.51.100.0/24")},
		{"network-addresses network[0].address[2]", addAddress("198.51.100.255/24")},
		{"network-addresses network[0].address[2]", addAddress("224.0.0.1/4")},
		{"network-addresses network[0].address[2]", addAddress("127.0.0.2/8")},
		{"network-addresses network[0].address[2]", addAddress("0.0.0.0/8")},
		{"network-addresses network[0].address[2]", addAddress("198.51.100.1/0")},
		{"network-addresses network[0].address[2]", addAddress("2001:db8:1::/64")},
		{"network-addresses network[0].address[2]", addAddress("::ffff:192.0.2.9/120")},
		{"network-addresses network[0].address[2]", addAddress("192.0.2.10/32")},
		{"network-dhcp network[0].address[0]", eth(func(w *Network) { w.DHCP, w.Gateway, w.Routes = true, "", nil })},
		{"network-dhcp network[0].gateway", eth(func(w *Network) { w.DHCP, w.Address = true, w.Address[1:] })},
		{"network-routes network[0].routes[0].via", eth(func(w *Network) {
			w.DHCP, w.Address, w.Gateway, w.Routes[0] = true, nil, "", Route{To: "2001:db8:1::/48", Via: "2001:db8::2"}
		})},
		{"network-gateway network[0].gateway", eth(func(w *Network) { w.Gateway = "203.0.113.1" })},
		{"network-gateway network[0].gateway", eth(func(w *Network) { w.Gateway = "192.0.2.10" })},
		{"network-gateway network[0].gateway", eth(func(w *Network) { w.Gateway = "router" })},
		{"network-gateway network[1].gateway", func(n *Node) {
			n.Network[1].Address, n.Network[1].Gateway = []string{"203.0.113.2/24"}, "203.0.113.1"
		}},
		{"network-routes network[0].routes[0].to", eth(func(w *Network) { w.Routes[0].To = "198.51.100.1/24" })},
		{"network-routes network[0].routes[0].to", eth(func(w *Network) { w.Routes[0].To = "0.0.0.0/0" })},
		{"network-routes network[0].routes[0].to", eth(func(w *Network) { w.Routes[0].To = "default" })},
		{"network-routes network[0].routes[0].via", eth(func(w *Network) { w.Routes[0].Via = "203.0.113.1" })},
		{"network-routes network[0].routes[0].via", eth(func(w *Network) { w.Routes[0].Via = "2001:db8::1" })},
		{"network-routes network[0].routes[1].to", eth(func(w *Network) { w.Routes = append(w.Routes, w.Routes[0]) })},
		{"network-mtu network[0].mtu", eth(func(w *Network) { w.MTU = 1279 })},
		{"network-nat network[1].parent", nat(func(w *Network) { w.Parent = "br0" })},
		{"network-nat network[1].address", nat(func(w *Network) { w.Address = []string{"203.0.113.9/24"} })},
		{"network-nat network[1].dhcp", nat(func(w *Network) { w.DHCP = true })},
		{"network-nat network[1].vlan", nat(func(w *Network) { w.VLAN = 5 })},
		{"network-nat network[1].mode", func(n *Node) { n.Network = []Network{{Mode: NAT}, {Mode: NAT}} }},
		{"network-nat network[0].gateway", func(n *Node) { n.Network[1] = Network{Mode: NAT} }},
		{"network-ports network[1].ports[0]", nat(func(w *Network) { w.Ports = []string{"80"} })},
		{"network-ports network[1].ports[1]", nat(func(w *Network) { w.Ports = []string{"80:80", "79-81:79-81"} })},
		{"network-ports network[1].ports[1]", nat(func(w *Network) { w.Ports = []string{"80:80", "127.0.0.1:80:8080"} })},
		{"network-ports network[1].ports", nat(func(w *Network) { w.Mode, w.Ports = Bridge, []string{"80:80"} })},
		{"devices devices[0].path", func(n *Node) { n.Devices[0].Path = "fuse" }},
		{"devices devices[0].path", func(n *Node) { n.Devices[0].Path = "/dev/[a]" }},
		{"devices devices[1].path", func(n *Node) { n.Devices[1].Path = "/dev/fuse" }},
		{"devices devices[1].as", func(n *Node) { n.Devices[1].As = "/sdc" }},
		{"devices devices[1].as", func(n *Node) { n.Devices[1].As = "/dev/null" }},
		{"devices devices[1].access", func(n *Node) { n.Devices[1].Access = "rx" }},
		{"devices devices[1].access", func(n *Node) { n.Devices[1].Access = "rr" }},
		{"devices devices[2].as", func(n *Node) { n.Devices[2].As = "/dev/x" }},
		{"mounts mounts[0].source", func(n *Node) { n.Mounts[0].Source = "" }},
		{"mounts mounts[0].source", func(n *Node) { n.Mounts[0].Source = "/a/../b" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "/export" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "server:export" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "a b:/export" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "[192.0.2.1]:/export" }},
		{"mounts mounts[1].source", func(n *Node) { n.Mounts[1].Source = "server:/a/../b" }},
		{"mounts mounts[0].source", func(n *Node) { n.Mounts[0].Source = "server:/export" }},
		{"values mounts[1].via", func(n *Node) { n.Mounts[1].Via = "bridge" }},
		{"mounts mounts[0].via", func(n *Node) { n.Mounts[0].Via = ViaNode }},
		{"mounts mounts[0].options", func(n *Node) { n.Mounts[0].Options = Options{"x": "y"} }},
		{"mounts mounts[1].options.", func(n *Node) { n.Mounts[1].Options[""] = "y" }},
		{"mounts mounts[1].options.a", func(n *Node) { n.Mounts[1].Options["a"] = "" }},
		{"mounts mounts[1].options.a", func(n *Node) { n.Mounts[1].Options["a"] = "1,exec" }},
		{"mounts mounts[1].options.hard", func(n *Node) { n.Mounts[1].Options["hard"] = "yes" }},
		{"mounts mounts[1].options.sec", func(n *Node) { n.Mounts[1].Options["sec"] = "krb5" }},
		{"mounts mounts[1].options.rsize", func(n *Node) { n.Mounts[1].Options["rsize"] = "12k" }},
		{"mounts mounts[1].options.soft", func(n *Node) { n.Mounts[1].Options["soft"] = "true" }},
		{"mounts mounts[1].options.nolock", func(n *Node) { n.Mounts[1].Options["nolock"] = "true" }},
		{"mounts mounts[1].options.vers", func(n *Node) { n.Mounts[1].Options["vers"], n.Mounts[1].Via = "3", ViaNode }},
		{"mounts mounts[1].options.identity", func(n *Node) {
			n.Mounts[1].Via, n.Mounts[1].Gateway, n.Mounts[1].Options = ViaNode, SSHFSGateway, Options{"user": "a"}
		}},
		{"mounts mounts[1].options.user", func(n *Node) {
			n.Mounts[1].Via, n.Mounts[1].Gateway, n.Mounts[1].Options = ViaNode, SSHFSGateway, Options{"user": "root", "identity": "/k"}
		}},
		{"mounts mounts[1].options.known_hosts", func(n *Node) {
			n.Mounts[1].Via, n.Mounts[1].Gateway, n.Mounts[1].Options = ViaNode, SSHFSGateway, Options{"user": "a", "identity": "/k", "known_hosts": "k"}
		}},
		{"mounts mounts[1].options.user", func(n *Node) {
			n.Mounts[1].Via, n.Mounts[1].Gateway, n.Mounts[1].Options = ViaNode, SSHFSDirectGateway, Options{"user": "a"}
		}},
		{"mounts mounts[1].via", func(n *Node) {
			n.Mounts[1].Gateway, n.Mounts[1].Options, n.Mounts[1].Via = SSHFSDirectGateway, Options{"uid": "1500"}, ViaHost
		}},
		{"mounts mounts[1].gateway", func(n *Node) {
			n.Mounts[1].Via, n.Mounts[1].Gateway, n.Mounts[1].Options = ViaNode, SSHFSDirectGateway, nil
			n.Users = []IDExtent{{From: 100000, Count: 2, As: SameIDs}}
		}},
		{"mounts mounts[1].map", func(n *Node) { n.Mounts[1].Map = Idmapped }},
		{"mounts mounts[1].via", func(n *Node) { n.Mounts[1].Via, n.Network = ViaNode, []Network{{Mode: None}} }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0].Target = "/data/eos" }},
		{"mounts mounts[1].nosuid_source", func(n *Node) { n.Mounts[1].NosuidSource = true }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0].Target = "/" }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0].Target = "/proc/sys" }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0] = Mount{Source: "/a", Target: "/proc/meminfo", Map: Identity} }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0] = Mount{Source: "/a", Target: "/proc/kmsg", ReadOnly: true, Map: Identity} }},
		{"mounts mounts[0].target", func(n *Node) { n.Mounts[0].Target = "/dev" }},
		{"scratch scratch[0].size", func(n *Node) { n.Scratch[0].Size = 0 }},
		{"scratch scratch[0].target", func(n *Node) { n.Scratch[0].Target = "tmp" }},
		{"scratch scratch[0].pool", func(n *Node) { n.Scratch[0].Pool = "a/b" }},
		{"targets-unique scratch[0].target", func(n *Node) { n.Scratch[0].Target = "/eos" }},
		{"delta delta.size", func(n *Node) { n.Delta.Size = 4 }},
		{"machine machine", func(n *Node) { n.Machine.CPUs = 2 }},
		{"machine machine.kernel", func(n *Node) { *n = *aMachine(); n.Machine.Kernel = "" }},
		{"machine machine.kernel", func(n *Node) { *n = *aMachine(); n.Machine.Kernel = "vmlinuz" }},
		{"machine machine.memory", func(n *Node) { *n = *aMachine(); n.Machine.Memory = 1 << 20 }},
		{"machine machine.memory", func(n *Node) { *n = *aMachine(); n.Machine.Memory = 200<<20 + 1 }},
		{"text machine.cmdline", func(n *Node) { *n = *aMachine(); n.Machine.Cmdline = "a\nb" }},
		{"values machine.accel", func(n *Node) { *n = *aMachine(); n.Machine.Accel = "xen" }},
		{"machine memory.max", func(n *Node) { *n = *aMachine(); n.Memory.Max = 512 << 20 }},
		{"machine machine.cmdline", func(n *Node) { *n = *aMachine(); n.Machine.Cmdline = "a -- b" }},
		{"machine pids", func(n *Node) { *n = *aMachine(); n.Machine.CPUs, n.PIDs = 2, 129 }},
		{"machine image", func(n *Node) { *n = *aMachine(); n.Image = Image{Kind: OCIImage, Ref: "debian"} }},
		{"machine delta", func(n *Node) { *n = *aMachine(); n.Delta.In = "" }},
		{"machine delta.size", func(n *Node) { *n = *aMachine(); n.Delta = Delta{Size: 1 << 20} }},
		{"machine delta.size", func(n *Node) { *n = *aMachine(); n.Delta.Size = 1 << 40 }},
		{"machine memory.max", func(n *Node) {
			*n = *aMachine()
			n.Mounts, n.Memory.Max = []Mount{{Source: "/a", Target: "/a"}, {Source: "/b", Target: "/b", ReadOnly: true}}, 512<<20+Overhead+2*MountOverhead-1
		}},
		{"machine pids", func(n *Node) {
			*n = *aMachine()
			n.Mounts, n.PIDs, n.Memory.Max = []Mount{{Source: "/a", Target: "/a"}}, 144, 0
		}},
		{"machine mounts[0].target", func(n *Node) {
			*n = *aMachine()
			n.Mounts, n.Memory.Max = []Mount{{Source: "/a", Target: "/proc/meminfo", Map: Identity, ReadOnly: true}}, 0
		}},
		{"mounts mounts[0].options", func(n *Node) { n.Mounts[0].Gateway, n.Mounts[0].Options = VirtioFSGateway, Options{"cache": "always"} }},
		{"machine sysctls", func(n *Node) { *n = *aMachine(); n.Sysctls = SysctlMap{"net.core.somaxconn": "9"} }},
	} {
		n := full()
		c.change(n)
		var got []string
		for _, p := range Validate(n) {
			got = append(got, p.Check+" "+p.Field)
			used[p.Check] = true
		}
		if diff := cmp.Diff([]string{c.want}, got); diff != "" {
			t.Errorf("%s: %v\n%s", c.want, Validate(n), diff)
		}
	}
	for _, c := range checks() {
		if !used[c.name] {
			t.Errorf("no case makes check %s report anything", c.name)
		}
	}
}

// aMachine returns a machine's spec without mistakes.
func aMachine() *Node {
	return &Node{
		Name: "m", Kind: MachineKind, Image: Image{Kind: FileImage, Ref: "/srv/a.erofs"}, Delta: Delta{In: InMemory},
		Machine: Machine{Kernel: "/boot/vmlinuz"}, PIDs: 200, Memory: Memory{Max: 768 << 20},
	}
}

// TestMachineKeys: each key of a spec was thought of, whether a machine has it.
func TestMachineKeys(t *testing.T) {
	var walk func(of reflect.Type, below string)
	walk = func(of reflect.Type, below string) {
		for f := range of.Fields() {
			key := join(below, FieldKey(f))
			m, known := OfMachine(key)
			switch {
			case !known:
				t.Errorf("%s: say in MachineKeys what it means for a machine", key)
			case m.Same == (m.Why != ""):
				t.Errorf("%s: it is either the same, or has a reason: %+v", key, m)
			}
			if at := f.Type; at.Kind() == reflect.Struct {
				walk(at, key)
			} else if at.Kind() == reflect.Slice && at.Elem().Kind() == reflect.Struct {
				walk(at.Elem(), key)
			}
		}
	}
	walk(reflect.TypeFor[Node](), "")
	for key := range MachineKeys() {
		top, _, _ := strings.Cut(key, ".")
		if !slices.ContainsFunc(reflect.VisibleFields(reflect.TypeFor[Node]()), func(f reflect.StructField) bool { return FieldKey(f) == top }) {
			t.Errorf("%s is no key of a spec", key)
		}
	}
	if problems := Validate(aMachine()); len(problems) > 0 {
		t.Error(problems)
	}
}

func users(all ...IDExtent) func(*Node) { return func(n *Node) { n.Users = all } }

func addAddress(a string) func(*Node) {
	return func(n *Node) { n.Network[0].Address = append(n.Network[0].Address, a) }
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	n := &Node{
		Network: []Network{{}, {Name: "data", Mode: Phys}, {Mode: None}},
		Mounts:  []Mount{{}},
		Devices: []Device{{}},
	}
	Defaults(n)
	want := &Node{
		PIDs:    4096,
		Network: []Network{{Name: "eth0", Mode: Bridge, MAC: "auto"}, {Name: "data", Mode: Phys}, {Mode: None}},
		Mounts:  []Mount{{Gateway: "bind", Map: "idmapped"}},
		Devices: []Device{{Access: "rw"}},
	}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Error(diff)
	}
	if Defaults(n); cmp.Diff(want, n) != "" {
		t.Error("not idempotent")
	}
}

func TestParseRemote(t *testing.T) {
	t.Parallel()
	for source, want := range map[string][2]string{
		"server:/export":            {"server", "/export"},
		"a.example.org:/":           {"a.example.org", "/"},
		"192.0.2.1:/srv/a:b":        {"192.0.2.1", "/srv/a:b"},
		"[2001:db8::1]:/export":     {"2001:db8::1", "/export"},
		"/export":                   {},
		":/export":                  {},
		"server:export":             {},
		"[2001:db8::1:/export":      {},
		"2001:db8::1:/export":       {},
		"[fe80::1%eth0;rm -r]:/srv": {"", ""},
	} {
		host, path, err := ParseRemote(source)
		if got := [2]string{host, path}; got != want || (err == nil) != (want[0] != "") {
			t.Errorf("%s: %q, %v; want %q", source, got, err, want)
		}
	}
}
