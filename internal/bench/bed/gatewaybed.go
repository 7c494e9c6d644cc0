package bed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// treeName is the folder that gateway experiments make in the folder that is measured.
const treeName = ".berth-bench.tree"

// treeBed is a tree of files, and nodes that reach it by gateways. One node has all gateways, so that the arms differ in nothing else.
type treeBed struct {
	*Bed
	o      *Options
	lab    Lab
	dir    string // the tree
	keys   string // folder of keys, and of what else the file servers need
	bridge string // between the host, where the file servers are, and the nodes
	subnet netip.Prefix
	places map[string][]place // by arm
	trial  int
}

// host is the address of the file servers.
func (t *treeBed) host() netip.Addr { return t.subnet.Addr().Next() }

// gateways makes the bed of the experiments of gateways.
func (t *treeBed) gateways(ctx context.Context, rows []treeRow) error {
	nodes := slices.MaxFunc(rows, func(a, b treeRow) int { return a.count - b.count }).count
	if err := t.begin(ctx, nodes); err != nil {
		return err
	}
	arms, mounts, err := t.reach(ctx, t.o.gateways())
	if err != nil {
		return err
	}
	if len(arms) == 0 {
		return refuse.Cannotf("install what is missing, or name others with --gateway", "no gateway can be measured here: %s", strings.Join(t.Notes, "; "))
	}
	var specs []*vnode.Node
	for i := range nodes {
		spec := t.spec(i, mounts)
		run, err := t.Node(ctx, t.lab, spec)
		if err != nil {
			return err
		}
		specs = append(specs, spec)
		for a, arm := range arms {
			t.places[arm] = append(t.places[arm], place{run, filepath.Join(mounts[a].Target, strconv.Itoa(i+1))})
		}
	}
	for _, arm := range arms {
		if err := t.AddArm(Side{Name: arm, Title: arm, Run: t.places[arm][0].run, Node: specs[0]}); err != nil {
			return err
		}
	}
	t.addRows(rows)
	return nil
}

// begin makes the tree with a folder of data for each process, and the arms of the host.
func (t *treeBed) begin(ctx context.Context, processes int) error {
	dir, err := filepath.EvalSymlinks(t.o.Dirs[0])
	if err != nil {
		return refuse.NotFoundf("find the folder to measure in: %w", err)
	}
	if err := CheckFolder(dir, t.o.Size*int64(processes)); err != nil {
		return err
	}
	t.dir = filepath.Join(dir, treeName)
	if err := openFolder(t.dir); errors.Is(err, os.ErrExist) {
		return refuse.Busyf("%s exists: another run measures here, or a machine that crashed left it; remove it if no run is at work", t.dir)
	} else if err != nil {
		return err
	}
	if err := t.lastWill(); err != nil {
		return err
	}
	for i := range processes {
		dir := filepath.Join(t.dir, strconv.Itoa(i+1))
		if err := t.layOut(ctx, dir, int64(i), int64(processes)); err != nil {
			return err
		}
		t.places[result.Host] = append(t.places[result.Host], place{side.Host, dir})
	}
	t.places[result.Null] = t.places[result.Host]
	target := result.Target{Kind: "file", Path: filepath.Join(t.dir, "1", dataName), Size: t.o.Size, Written: true}
	disk, err := side.DiskOf(target)
	if err != nil {
		return err
	}
	t.Targets = []result.DiskUsed{{Target: target, Disk: disk}}
	t.Arms = []Arm{{Arm: result.Arm{Name: result.Host, Title: "host"}, Run: side.Host}}
	t.WithNull()
	return nil
}

// lastWill removes all that a bed makes outside nodes, also if this process is killed.
func (t *treeBed) lastWill() error {
	var err error
	if t.keys, err = os.MkdirTemp("/run", "berth-bench-"); err != nil {
		return errors.Join(fmt.Errorf("make a folder for keys: %w", err), os.Remove(t.dir))
	}
	if err := os.Chmod(t.keys, 0o755); err != nil { // the file server reads its users' keys as them
		return err
	}
	t.bridge = fmt.Sprintf("berth-g%d", os.Getpid())
	tree, keys := side.Quoted(t.dir), side.Quoted(t.keys)
	script := `for m in ` + tree + `/mnt-*; do ! mountpoint -q "$m" || umount "$m"; done
[ ! -e ` + keys + `/export ] || exportfs -u "$(cat ` + keys + `/export)"
[ ! -e ` + keys + `/sshd ] || rmdir /run/sshd 2>/dev/null
[ ! -e /sys/class/net/` + t.bridge + ` ] || ip link del ` + t.bridge + `
rm -rf --one-file-system ` + tree + ` ` + keys
	undo, err := side.LastWill(script)
	if err != nil {
		return errors.Join(err, os.RemoveAll(t.keys), os.RemoveAll(t.dir))
	}
	t.undo = append(t.undo, undo)
	return nil
}

// layOut makes the folder of a process, with its data.
func (t *treeBed) layOut(ctx context.Context, dir string, i, of int64) error {
	if err := openFolder(dir); err != nil {
		return err
	}
	return LayOutFile(ctx, filepath.Join(dir, dataName), t.o.Size, func(done, total int64) {
		t.o.Tell(Progress{What: LayOut, Done: i*total + done, Total: of * total})
	})
}

// LayOutFile makes a file with data that does not compress, which every user may write.
func LayOutFile(ctx context.Context, path string, size int64, report func(done, total int64)) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make the data: %w", err)
	}
	err = f.Chmod(0o666)
	if err == nil {
		err = write(ctx, f, size, report)
	}
	return errors.Join(err, f.Close())
}

// addRows adds the rows; the command that the report shows is the host's.
func (t *treeBed) addRows(rows []treeRow) {
	for _, r := range rows {
		run := treeRun{r, t}
		t.Rows = append(t.Rows, Row{
			Row: result.Row{Name: r.name, Command: run.command(t.places[result.Host][0].dir, 3*time.Second, 300*time.Millisecond)},
			Job: run, Cold: r.cold,
		})
	}
}

// spec is the i-th node, with mounts.
func (t *treeBed) spec(i int, mounts []vnode.Mount) *vnode.Node {
	n := &vnode.Node{
		Name: fmt.Sprintf("bench-%d-%d", os.Getpid(), i+1), Image: vnode.Image{Kind: vnode.HostImage},
		Command: []string{"/bin/sleep", "infinity"}, Mounts: mounts,
	}
	if slices.ContainsFunc(mounts, remote) {
		at := t.host()
		for range i + 1 {
			at = at.Next()
		}
		n.Network = []vnode.Network{{Mode: vnode.Bridge, Parent: t.bridge, Address: []string{netip.PrefixFrom(at, t.subnet.Bits()).String()}}}
	}
	vnode.Defaults(n)
	return n
}

func remote(m vnode.Mount) bool { return m.Gateway != vnode.BindGateway }

// reach starts the file servers that some gateways need, and returns the arms that this host can have with their mounts. It notes why
// others are left out.
func (t *treeBed) reach(ctx context.Context, wanted []string) (arms []string, mounts []vnode.Mount, err error) {
	network := false
	for _, arm := range gatewayArms {
		if !slices.Contains(wanted, arm) {
			continue
		}
		if arm != bindArm && !network {
			if err := t.network(ctx); err != nil {
				return nil, nil, err
			}
			network = true
		}
		m, err := t.serve(ctx, arm)
		if err == nil {
			err = t.lab.Mount(ctx, m)
		}
		if refuse.KindOf(err) == refuse.Cannot {
			t.Notes = append(t.Notes, arm+" is left out: "+err.Error())
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("make the arm %s: %w", arm, err)
		}
		arms, mounts = append(arms, arm), append(mounts, m)
	}
	return arms, mounts, nil
}

// network makes the bridge on which the nodes reach the file servers of this host.
func (t *treeBed) network(ctx context.Context) error {
	var err error
	if t.subnet, err = t.lab.Subnet(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", t.bridge, "type", "bridge"},
		{"address", "add", netip.PrefixFrom(t.host(), t.subnet.Bits()).String(), "dev", t.bridge},
		{"link", "set", t.bridge, "up"},
	} {
		if _, err := side.Host(ctx, append([]string{"ip"}, args...)); err != nil {
			return fmt.Errorf("make a bridge between the nodes and the file servers: %w", err)
		}
	}
	return nil
}
