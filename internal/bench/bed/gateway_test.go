package bed

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

func TestSetNames(t *testing.T) {
	for _, c := range []struct {
		sets, want []string
	}{
		{nil, []string{"gateway-throughput", "gateway-iops", "gateway-metadata"}},
		{[]string{"storage"}, []string{"gateway-storage"}},
		{[]string{"disk"}, nil},
	} {
		if got, err := SetNames(c.sets); !cmp.Equal(got, c.want) || (err != nil) != (c.want == nil) {
			t.Errorf("%v: %v, %v", c.sets, got, err)
		}
	}
}

func TestGatewayOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{}, ""},
		{Options{Gateways: []string{"nfs", "sshfs-direct"}, Nodes: []int{1, 64}}, ""},
		{Options{Gateways: []string{"virtiofs"}}, `no gateway "virtiofs"`},
		{Options{Nodes: []int{0}}, "0 nodes"},
		{Options{Nodes: []int{65}}, "65 nodes"},
	} {
		err := c.o.Complete()
		if (err == nil) != (c.says == "") || err != nil && (refuse.KindOf(err) != refuse.Invalid || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

// The commands of the rows on the host, without the words that all have.
const gatewayCommands = `write, 1 node: --rw=write --bs=262144 --direct=0 --runtime=3000ms --allow_file_create=0 --end_fsync=1 --filename=/tree/1/data
read, 1 node: --rw=read --bs=262144 --direct=0 --runtime=3000ms --allow_file_create=0 --readonly --filename=/tree/1/data
random read, 1 node: --rw=randread --bs=4096 --direct=1 --runtime=3000ms --allow_file_create=0 --time_based --readonly --filename=/tree/1/data
random write, 1 node: --rw=randwrite --bs=4096 --direct=1 --runtime=3000ms --allow_file_create=0 --time_based --end_fsync=1 --filename=/tree/1/data
create, 1 node: --ioengine=filecreate --directory=/tree/1 --nrfiles=2000
stat, 1 node: --ioengine=filestat --directory=/tree/1 --nrfiles=2000
unlink, 1 node: --ioengine=filedelete --directory=/tree/1 --nrfiles=2000
write: --rw=write --bs=262144 --direct=1 --runtime=3000ms --create_on_open=1 --unlink=1 --end_fsync=1 --filename=/tree/1/new
rewrite: --rw=write --bs=262144 --direct=1 --runtime=3000ms --allow_file_create=0 --end_fsync=1 --filename=/tree/1/data
read: --rw=read --bs=262144 --direct=1 --runtime=3000ms --allow_file_create=0 --readonly --filename=/tree/1/data
reread: --rw=read --bs=262144 --direct=1 --runtime=3000ms --allow_file_create=0 --readonly --filename=/tree/1/data
random read: --rw=randread --bs=262144 --direct=1 --runtime=3000ms --allow_file_create=0 --time_based --readonly --filename=/tree/1/data
random write: --rw=randwrite --bs=262144 --direct=1 --runtime=3000ms --allow_file_create=0 --time_based --end_fsync=1 --filename=/tree/1/data
`

// treeRows are the rows of a set on a tree of the test's own.
func treeRows(t *testing.T, o *Options, set, dir string) *treeBed {
	t.Helper()
	b := &treeBed{Bed: &Bed{}, o: o, dir: dir, places: map[string][]place{result.Host: {{side.Host, dir + "/1"}}}}
	for _, d := range gatewaySet(o) {
		if d.Name == gatewayPrefix+set {
			b.addRows(d.tree)
			return b
		}
	}
	t.Fatalf("there is no set %s", set)
	return nil
}

func TestGatewayCommands(t *testing.T) {
	o := &Options{Nodes: []int{1}}
	if err := o.Complete(); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	shown := []string{
		"--rw", "--bs", "--direct", "--runtime", "--time_based", "--create_on_open", "--unlink", "--allow_file_create", "--end_fsync", "--readonly",
		"--filename", "--directory", "--nrfiles", "--ioengine",
	}
	for _, set := range []string{ThroughputSet, IOPSSet, MetadataSet, StorageSet} {
		for _, r := range treeRows(t, o, set, "/tree").Rows {
			got.WriteString(r.Name + ":")
			for _, w := range r.Command {
				if name, _, _ := strings.Cut(w, "="); slices.Contains(shown, name) && w != "--ioengine=psync" && (r.Job.(treeRun).op == "" || name != "--bs") {
					got.WriteString(" " + w)
				}
			}
			got.WriteString("\n")
		}
	}
	if d := cmp.Diff(gatewayCommands, got.String()); d != "" {
		t.Error(d)
	}
}

// Every row of every set runs here, by two processes on the host's side of a tree of its own.
func TestRealTreeRows(t *testing.T) {
	needFio(t)
	dir := onDisk(t)
	o := &Options{Nodes: []int{2}, Size: 1 << 20, Quick: true}
	for _, set := range []string{ThroughputSet, IOPSSet, MetadataSet, StorageSet} {
		b := treeRows(t, o, set, filepath.Join(dir, set))
		b.places[result.Host] = nil
		if err := os.Mkdir(b.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range int64(2) {
			at := filepath.Join(b.dir, strconv.FormatInt(i+1, 10))
			if err := b.layOut(t.Context(), at, i, 2); err != nil {
				t.Fatal(err)
			}
			b.places[result.Host] = append(b.places[result.Host], place{side.Host, at})
		}
		var d Definition
		for _, d = range gatewaySet(o) {
			if d.Name == gatewayPrefix+set {
				break
			}
		}
		for _, r := range b.Rows {
			v, err := r.Job.Measure(t.Context(), Arm{Arm: result.Arm{Name: result.Host}}, 60*time.Millisecond, time.Millisecond)
			if err != nil {
				t.Errorf("%s: %v", r.Name, err)
				continue
			}
			for _, m := range d.Measures {
				if x, ok := v[m.Name]; !ok || x < 0 || x == 0 && m.Name != "cpu_s_per_gib" || math.IsInf(x, 0) { // its clock ticks every 10 ms
					t.Errorf("%s, %s: %v", r.Name, m.Name, v)
				}
			}
			if left, err := os.ReadDir(b.places[result.Host][0].dir); err != nil || len(left) != 1 {
				t.Errorf("%s leaves %v, %v", r.Name, left, err)
			}
		}
	}
}

// A process that fails ends the others, and the error says which it was.
func TestTreeRowFails(t *testing.T) {
	o := &Options{Nodes: []int{2}, Size: 1 << 20}
	b := treeRows(t, o, ThroughputSet, t.TempDir())
	fails := func(context.Context, []string) ([]byte, error) { return nil, refuse.NotFoundf("no such disk") }
	waits := func(ctx context.Context, _ []string) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
	b.places["bind"] = []place{{waits, "/a"}, {fails, "/b"}}
	_, err := b.Rows[0].Job.Measure(t.Context(), Arm{Arm: result.Arm{Name: "bind"}}, time.Second, 0)
	if err == nil || !strings.Contains(err.Error(), "process 2 of 2: no such disk") {
		t.Error(err)
	}
}

// Where nothing can be mounted the reasons are the answer, and the tree is gone.
func TestNoGateway(t *testing.T) {
	testkit.NeedsRoot(t)
	dir := onDisk(t)
	o := Options{Gateways: []string{bindArm}, Nodes: []int{1}, Dirs: []string{dir}, Size: 1 << 20}
	lab := Lab{Mount: func(context.Context, vnode.Mount) error {
		return refuse.Cannotf("get a kernel", "nothing can be mounted")
	}}
	for _, d := range gatewaySet(&o)[:3] {
		b := &Bed{}
		err := d.Make(t.Context(), b, &d, &o, lab)
		if refuse.KindOf(err) != refuse.Cannot || !strings.Contains(err.Error(), "bind is left out: nothing can be mounted") {
			t.Errorf("%s: %v", d.Name, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	// A folder of that name that is somebody else's is not touched.
	if err := os.Mkdir(filepath.Join(dir, treeName), 0o700); err != nil {
		t.Fatal(err)
	}
	b, d := &Bed{}, gatewaySet(&o)[0]
	if err := d.Make(t.Context(), b, &d, &o, lab); refuse.KindOf(err) != refuse.Busy {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(filepath.Join(dir, treeName)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// sshfs-direct is set against nfs by the pairs of the same rounds, not by medians.
func TestBesideNFS(t *testing.T) {
	d := gatewaySet(&Options{})[0]
	e := &result.Experiment{About: d.About, Rows: []result.Row{{Name: "read, 1 node"}, {Name: "write, 1 node"}}}
	for round := 1; round <= 8; round++ {
		speed := 1e6 * float64(1+round%3) // of all arms alike: only pairs see the difference
		for arm, factor := range map[string]float64{nfsArm: 1, directArm: 1.25, directTuned: .8} {
			e.Trials = append(e.Trials, result.Trial{
				Head: result.Head{Row: "read, 1 node", Round: round, Arm: arm}, Values: map[string]float64{"bytes_per_second": speed * factor},
			})
		}
	}
	want := []string{
		"read, 1 node, sshfs-direct: ahead of nfs; loses -25.0 % against nfs (95 %: -25.0 to -25.0)",
		"read, 1 node, sshfs-direct-sync: behind nfs; loses +20.0 % against nfs (95 %: +20.0 to +20.0)",
	}
	if d := cmp.Diff(want, besideNFS(e, 5)); d != "" {
		t.Error(d)
	}
}
