package syncbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/bench/bed"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
)

// shared is the name of the file system, entry that of the nodes' entry for it.
const (
	shared = "shared"
	entry  = "s"
)

// The files on each server: of the node that is measured, and of the one beside it.
const (
	ownFile   = "node"
	otherFile = "other"
)

// folderName is the folder that the experiments make in the folder that is measured.
const folderName = ".berth-bench.sync"

// servedAs is the user that the servers act as.
const servedAs = "nobody"

// site is a site of file servers on this machine, all of them with a Berth of their own, and of nodes, which the first one has.
type site struct {
	*bed.Bed
	o       *bed.Options
	lab     bed.Lab
	dir     string // of the disks' files
	roots   string // of the servers' Berths: in memory, for they last as long as the run
	bridge  string // between the servers and the nodes
	subnet  netip.Prefix
	servers []server
	nodes   int // how many were made

	weighs    bool  // the disks are to share by weight …
	unweighed error // … and cannot
}

// server is one file server.
type server struct {
	root   string
	device string // its disk, loop7
	served string // where it is mounted, which is the folder that is served
	port   string
}

func (s *site) host() string { return s.subnet.Addr().Next().String() }

// serve makes n file servers, with the files of the nodes.
func (s *site) serve(ctx context.Context, n int) error {
	if err := s.lab.Mount(ctx, vnode.Mount{Source: "192.0.2.1:/", Target: "/mnt", Gateway: vnode.SSHFSDirectGateway}); err != nil {
		return err
	}
	agent, err := sibling.Find("berthd", "file servers are run", "make install puts both there; Debian's package is berthd")
	if err != nil {
		return err
	}
	if err := s.begin(n); err != nil {
		return err
	}
	for i := range n {
		if err := s.disk(ctx, i, n); err != nil {
			return err
		}
	}
	if err := s.network(ctx); err != nil {
		return err
	}
	if err := s.agents(ctx, agent); err != nil {
		return err
	}
	for i := range s.servers {
		var err error
		if s.servers[i].port, err = s.listen(ctx, s.servers[i], "--sync", shared); err != nil {
			return err
		}
	}
	s.lab = s.lab.At(s.servers[0].root)
	return nil
}

// listen starts a file server, and returns its port.
func (s *site) listen(ctx context.Context, v server, more ...string) (port string, err error) {
	if port, err = bed.FreePort(s.host()); err != nil {
		return "", err
	}
	at := net.JoinHostPort(s.host(), port)
	argv := []string{s.lab.Self, "--root", v.root, "gateway", "serve", v.served, "--user", servedAs, "--allow", s.subnet.String(), "--listen", at}
	return port, s.Program(ctx, append(argv, more...), bed.Takes(at))
}

// begin makes the folders, and sees to it that everything goes that is made, also if this process is killed.
func (s *site) begin(n int) error {
	dir, err := filepath.EvalSymlinks(s.o.Dirs[0])
	if err != nil {
		return refuse.NotFoundf("find the folder to measure in: %w", err)
	}
	if err := bed.CheckFolder(dir, int64(n)*s.diskSize()); err != nil {
		return err
	}
	s.dir = filepath.Join(dir, folderName)
	if err := os.Mkdir(s.dir, 0o755); errors.Is(err, os.ErrExist) {
		return refuse.Busyf("%s exists: another run measures here, or a machine that crashed left it; remove it if no run is at work", s.dir)
	} else if err != nil {
		return fmt.Errorf("make a folder to measure in: %w", err)
	}
	if s.roots, err = os.MkdirTemp("/run", "berth-bench-"); err != nil {
		return errors.Join(fmt.Errorf("make a folder for the file servers: %w", err), os.Remove(s.dir))
	}
	for i := range n {
		s.servers = append(s.servers, server{root: filepath.Join(s.roots, strconv.Itoa(i+1)), served: filepath.Join(s.dir, strconv.Itoa(i+1))})
	}
	s.bridge = fmt.Sprintf("berth-y%d", os.Getpid())
	script, err := s.lastWill()
	if err == nil {
		var undo func() error
		if undo, err = side.LastWill(script); err == nil {
			s.Later(undo)
			err = os.Chmod(s.roots, 0o755) // the nodes' ids pass through
		}
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(s.roots), os.RemoveAll(s.dir))
	}
	for _, v := range s.servers {
		if err := errors.Join(os.Mkdir(v.root, 0o755), os.Mkdir(v.served, 0o755)); err != nil {
			return fmt.Errorf("make the folders of a file server: %w", err)
		}
	}
	return nil
}

// lastWill is the script that removes everything. Servers and agents are killed with this process; the keeper removes the nodes.
func (s *site) lastWill() (string, error) {
	facts, err := host.ReadFacts()
	if err != nil {
		return "", err
	}
	mounts := slices.Sorted(maps.Values(facts.Cgroups.V1))
	if facts.Cgroups.V2 != "" {
		mounts = append(mounts, facts.Cgroups.V2)
	}
	var groups []string
	for _, v := range s.servers {
		for _, m := range slices.Compact(mounts) {
			groups = append(groups, side.Quoted(filepath.Join(m, layout.New(v.root).CgroupParent()))+"*")
		}
	}
	dir, roots := side.Quoted(s.dir), side.Quoted(s.roots)
	return `again() { n=0; until "$@" 2>/dev/null; do n=$((n + 1)); [ $n -lt 150 ] || return 1; sleep 0.1; done; }
noNodes() { for d in ` + roots + `/1/lib/nodes/*/; do [ ! -d "$d" ]; done; }
noKeeper() { for d in ` + roots + `/*/run/keeper.sock; do [ ! -e "$d" ]; done; }
noGroup() { [ ! -d "$1" ] || { find "$1" -depth -type d -exec rmdir {} +; [ ! -d "$1" ]; }; }
unmounted() { ! mountpoint -q "$1" || umount "$1"; }
again noNodes; again noKeeper
for f in ` + roots + `/before-*; do d=${f##*/before-}; [ ! -e "$f" ] || cat "$f" > "/sys/block/$d/queue/scheduler"; done
for m in ` + dir + `/*/; do again unmounted "$m"; done
for g in ` + strings.Join(groups, " ") + `; do again noGroup "$g"; done
[ ! -e /sys/class/net/` + s.bridge + ` ] || ip link del ` + s.bridge + `
rm -rf --one-file-system ` + dir + ` ` + roots, nil
}

// diskSize is how large the disk of a server is, bytes: ext4 wants some of it.
func (s *site) diskSize() int64 { return (2*s.o.Size + s.o.Size/8 + 32<<20) &^ (1<<20 - 1) }

// disk makes the i-th server's disk of n, with the files.
func (s *site) disk(ctx context.Context, i, n int) error {
	v := &s.servers[i]
	image := v.served + ".img"
	for _, argv := range [][]string{
		{"fallocate", "-l", strconv.FormatInt(s.diskSize(), 10), image},
		{"mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", image},
	} {
		if _, err := side.Host(ctx, argv); err != nil {
			return fmt.Errorf("make the disk of a file server: %w", err)
		}
	}
	out, err := side.Host(ctx, []string{"losetup", "--find", "--show", "--direct-io=on", image})
	if err != nil {
		return fmt.Errorf("make the disk of a file server: %w", err)
	}
	device := strings.TrimSpace(string(out))
	v.device = filepath.Base(device)
	_, err = side.Host(ctx, []string{"mount", "-t", "ext4", "-o", "noatime", device, v.served})
	if _, e := side.Host(context.WithoutCancel(ctx), []string{"losetup", "--detach", device}); err == nil { // the mount holds it until it ends
		err = e
	}
	if err != nil {
		return fmt.Errorf("mount the disk of a file server: %w", err)
	}
	if err := s.schedule(*v, "none"); err != nil {
		return err
	}
	if s.weighs { // before the agent looks
		s.unweighed = s.schedule(*v, string(vnode.BFQ))
		if s.unweighed == nil {
			s.unweighed = os.WriteFile(filepath.Join("/sys/block", v.device, "queue/iosched/low_latency"), []byte("0"), 0)
		}
	}
	for f, name := range []string{ownFile, otherFile} {
		path := filepath.Join(v.served, name)
		tell := func(done, _ int64) {
			s.o.Tell(bed.Progress{What: bed.LayOut, Done: int64(2*i+f)*s.o.Size + done, Total: int64(2*n) * s.o.Size})
		}
		if err := bed.LayOutFile(ctx, path, s.o.Size, tell); err != nil {
			return err
		}
	}
	target := result.Target{Kind: "file", Path: filepath.Join(v.served, ownFile), Size: s.o.Size, Written: true}
	d, err := side.DiskOf(target)
	s.Targets = append(s.Targets, result.DiskUsed{Target: target, Disk: d})
	return err
}

// schedule gives a server's disk an I/O scheduler. A loop device keeps its own when it is free again, so the last will gives that back.
func (s *site) schedule(v server, name string) error {
	file, now, offered := side.Schedulers("/sys", v.device)
	if !slices.Contains(offered, name) {
		return refuse.Cannotf("load its module, or boot a kernel that has it", "this kernel offers no I/O scheduler %s for %s: %s", name, v.device, strings.Join(offered, ", "))
	}
	before := filepath.Join(s.roots, "before-"+v.device)
	if _, err := os.Stat(before); err != nil {
		if err := os.WriteFile(before, []byte(now), 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(file, []byte(name), 0); err != nil {
		return fmt.Errorf("set the scheduler %s of %s: %w", name, v.device, err)
	}
	return nil
}

// network makes the bridge on which nodes reach the servers.
func (s *site) network(ctx context.Context) (err error) {
	if s.subnet, err = s.lab.Subnet(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", s.bridge, "type", "bridge"},
		{"address", "add", s.host() + "/" + strconv.Itoa(s.subnet.Bits()), "dev", s.bridge},
		{"link", "set", s.bridge, "up"},
	} {
		if _, err := side.Host(ctx, append([]string{"ip"}, args...)); err != nil {
			return fmt.Errorf("make a bridge between the nodes and the file servers: %w", err)
		}
	}
	return nil
}

// agents starts an agent for each server. The first one keeps the cluster state; more than one need certificates.
func (s *site) agents(ctx context.Context, agent string) error {
	const local = "127.0.0.1"
	store, err := bed.FreePort(local)
	if err != nil {
		return err
	}
	for i, v := range s.servers {
		name, conf := "s"+strconv.Itoa(i+1), "local: true\n"
		if len(s.servers) > 1 {
			port, err := bed.FreePort(local)
			if err == nil {
				err = s.certify(ctx, i, name, local)
			}
			if err != nil {
				return err
			}
			keeps := "embedded: {listen: %q}"
			if i > 0 {
				keeps = "endpoints: [\"https://%s\"]"
			}
			conf = fmt.Sprintf("address: %[1]q\nlisten: [%[1]q]\nstore: {"+strings.Replace(keeps, "%", "%[2]", 1)+"}\n", net.JoinHostPort(local, port), net.JoinHostPort(local, store))
		}
		conf = fmt.Sprintf("host: %s\n%sfilesystems: [{name: %s, path: %q, server: sftp}]\n", name, conf, shared, v.served)
		if err := os.WriteFile(filepath.Join(v.root, "berthd.yaml"), []byte(conf), 0o600); err != nil {
			return err
		}
		generation := filepath.Join(layout.New(v.root).Run, "sync", shared, "generation")
		err := s.Program(ctx, []string{agent, "--root", v.root}, func() error { _, err := os.Stat(generation); return err })
		if err != nil {
			return err
		}
	}
	return nil
}

// certify makes the certificate of a server; the first one signs.
func (s *site) certify(ctx context.Context, i int, name, address string) error {
	berth := func(of int, args ...string) error {
		_, err := side.Host(ctx, append([]string{s.lab.Self, "--root", s.servers[of].root}, args...))
		return err
	}
	bundle := filepath.Join(s.roots, name+".tar")
	var err error
	if i == 0 {
		err = berth(0, "certs", "init", "--name", name, address)
	} else if err = berth(0, "certs", "issue", "-o", bundle, name, address); err == nil {
		err = berth(i, "certs", "install", bundle)
	}
	if err != nil {
		return fmt.Errorf("make a certificate for a file server: %w", err)
	}
	return nil
}

// node makes a node that has each server mounted at /mnt/1, /mnt/2 …, and more mounts.
func (s *site) node(ctx context.Context, role string, more ...vnode.Mount) (name string, run side.Arm, err error) {
	s.nodes++
	at := s.subnet.Addr().Next()
	for range s.nodes {
		at = at.Next()
	}
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d-%s", os.Getpid(), role), Image: vnode.Image{Kind: vnode.HostImage}, Command: []string{"/bin/sleep", "infinity"},
		Network: []vnode.Network{{Mode: vnode.Bridge, Parent: s.bridge, Address: []string{netip.PrefixFrom(at, s.subnet.Bits()).String()}}},
		IO:      []vnode.IO{{Name: entry, Filesystem: shared}}, Mounts: more,
	}
	for i, v := range s.servers {
		n.Mounts = append(n.Mounts, s.mount(v.port, "/mnt/"+strconv.Itoa(i+1)))
	}
	vnode.Defaults(n)
	run, err = s.Node(ctx, s.lab, n)
	if err != nil {
		return "", nil, err
	}
	return n.Name, run, s.holds(ctx, n.Name, "read.rate", 0)
}

func (s *site) mount(port, target string) vnode.Mount {
	return vnode.Mount{Source: s.host() + ":/", Target: target, Gateway: vnode.SSHFSDirectGateway, Options: vnode.Options{"port": port}}
}
