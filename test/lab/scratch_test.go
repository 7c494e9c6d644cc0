package lab_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/test/built"
	"berth/test/lab"
	"berth/test/sample"
	"berth/test/shares"
	"berth/test/testkit"
)

// TestScratch makes scratch volumes in volume groups of LVM, thick and thin, and in a folder with project quotas.
func TestScratch(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{CPUs: 2, Memory: 1024, Disks: []lab.Disk{{Size: 64 << 30}, {Size: 1 << 30}}})
	m.OK(t, `modprobe -a dm-thin-pool quota_v2 xfs loop || true
vgcreate -q vg-0 /dev/vdb; lvcreate -q -y --type thin-pool -L 24g -n thin vg-0; lvcreate -q -y -L 64m -n mine vg-0
mkfs.ext4 -q -O quota,project /dev/vdc; mkdir /srv/q; mount -o prjquota /dev/vdc /srv/q
berth pool add vg0 --vg vg-0; berth pool add thin --vg vg-0 --thin thin; berth pool add default --dir /srv/q`)
	before := foreign(t, m)
	t.Run("20 GiB", func(t *testing.T) { scratch20(t, m) })
	t.Run("limit", func(t *testing.T) { scratchLimit(t, m) })
	t.Run("quota", func(t *testing.T) { scratchQuota(t, m) })
	t.Run("refused", func(t *testing.T) { scratchRefused(t, m) })
	t.Run("busy", func(t *testing.T) { scratchBusy(t, m) })
	t.Run("killed", func(t *testing.T) { scratchKilled(t, m, before) })
	if now := foreign(t, m); now != before {
		t.Errorf("the volume groups were\n%s\nand are\n%s", before, now)
	}
	m.OK(t, "berth pool rm vg0 thin default; test -z \"$(ls -A /srv/q | grep -v lost+found)\"")
}

// foreign lists all logical volumes, and what is in the pool of a folder.
func foreign(t *testing.T, m *lab.VM) string {
	t.Helper()
	return m.OK(t, "lvs --noheadings -o lv_name,lv_uuid,lv_size,lv_tags; ls /srv/q/berth-*; losetup -a; grep -c . /proc/mounts")
}

// scratchNode writes the spec of a node without a network, and returns its path.
func scratchNode(t *testing.T, m *lab.VM, name, more string) string {
	t.Helper()
	file := "/root/" + name + ".yaml"
	m.Write(t, file, "name: "+name+"\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: none}]\n"+more)
	return file
}

// scratch20 logs how long volumes of 20 GiB take: a node with each, beside one without, in turns. As evidence it does so ten times.
func scratch20(t *testing.T, m *lab.VM) {
	type kind struct{ Name, More string }
	kinds := []kind{
		{"none", ""},
		{"thick-ext4", "scratch: [{target: /tmp, size: 20GiB, pool: vg0}]"},
		{"thin-ext4", "scratch: [{target: /tmp, size: 20GiB, pool: thin}]"},
		{"thick-xfs", "scratch: [{target: /tmp, size: 20GiB, pool: vg0, fs: xfs}]"},
		{"thin-xfs", "scratch: [{target: /tmp, size: 20GiB, pool: thin, fs: xfs}]"},
	}
	rounds := 1
	if shares.Keeps() {
		rounds = 10
	}
	took := map[string][]float64{} // seconds of berth apply, a round each
	for round := range rounds {
		for i := range kinds {
			c := kinds[(i+round)%len(kinds)]
			took[c.Name] = append(took[c.Name], volume20(t, m, c.Name, c.More))
		}
	}
	for _, c := range kinds {
		added := make([]float64, rounds)
		for i, s := range took[c.Name] {
			added[i] = s - took["none"][i]
		}
		slices.Sort(added)
		t.Logf("%s: apply took %.2f s more than without a volume (median), %.2f at most", c.Name, added[rounds/2], added[rounds-1])
	}
	if shares.Keeps() {
		text, err := json.MarshalIndent(map[string]any{"title": "Seconds of berth apply with a scratch volume of 20 GiB, by round", "emulated": true, "rounds": took}, "", " ")
		testkit.Must(t, err)
		testkit.Must(t, os.WriteFile(filepath.Join(os.Getenv(shares.Folder), "scratch", "20gib.json"), append(text, '\n'), 0o644))
	}
}

// volume20 starts a node with a volume, checks the volume, and returns how long the start took.
func volume20(t *testing.T, m *lab.VM, name, more string) float64 {
	t.Helper()
	file := scratchNode(t, m, name, more)
	took, err := strconv.ParseFloat(m.OK(t, "TIMEFORMAT=%R; { time berth apply -f "+file+" >/dev/null; } 2>&1"), 64)
	testkit.Must(t, err)
	if more != "" {
		out := m.OK(t, "berth exec "+name+" -- sh -c 'df -B1 /tmp; stat -c \"%a %u\" /tmp; echo kept >/tmp/f'; berth restart --grace 0s "+name+" >/dev/null; berth exec "+name+
			" -- cat /tmp/f; berth show "+name+"; lvs --noheadings -o lv_name,lv_tags | grep "+name)
		for _, want := range []string{"\n1777 0\n", "\nkept\n", "on vdb, where no limit of the node acts", "berth,berth.node=" + name + ",berth.pool="} {
			if !strings.Contains(out, want) {
				t.Errorf("%s lacks %q:\n%s", name, want, out)
			}
		}
	}
	m.OK(t, "berth rm --force "+name)
	return took
}

// scratchLimit checks that a limit of the disk acts on the volume, and that berth show says so.
func scratchLimit(t *testing.T, m *lab.VM) {
	node(t, m, "name: lim\nimage: host\ncommand: [sleep, infinity]\nnetwork: [{mode: none}]\nio: [{name: d, device: /dev/vdb, write: {rate: 4MB/s}}]\nscratch: [{target: /data, size: 1GiB, pool: vg0}]\n")
	if out := m.OK(t, "berth show lim"); !strings.Contains(out, "on vdb, limited by io.d") {
		t.Errorf("show:\n%s", out)
	}
	m.OK(t, "berth exec lim -- dd if=/dev/zero of=/data/f bs=1M count=16 oflag=direct 2>/root/dd")
	t.Log(m.OK(t, "tail -1 /root/dd"))
	if took := m.OK(t, `sed -n 's/.* \([0-9]*\)\.*[0-9]* s,.*/\1/p' /root/dd`); len(took) == 0 || took == "0" || took == "1" || took == "2" {
		t.Errorf("16 MiB at 4 MB/s took %s s", took)
	}
	// As after a reboot on which the volume was not activated.
	m.OK(t, "berth stop --grace 0s lim; lvchange -q -an vg-0/$(lvs --noheadings -o lv_name vg-0 | grep -o 'berth-.*-lim.*'); berth start lim; berth exec lim -- test -s /data/f")
}

// scratchQuota checks that a folder's volume is limited by its quota, and that no limit is left.
func scratchQuota(t *testing.T, m *lab.VM) {
	file := scratchNode(t, m, "q", "scratch: [{target: /data, size: 20MiB}, {target: /own, size: 32MiB, fs: ext4}]")
	m.OK(t, "berth apply -f "+file)
	if r := m.Run(t, "berth", "exec", "q", "--", "dd", "if=/dev/zero", "of=/data/f", "bs=1M", "count=30"); r.Code == 0 {
		t.Error("a node wrote 30 MiB into a volume of 20 MiB")
	}
	out := m.OK(t, "berth show q; berth exec q -- stat -c 'left %s' /data/f; berth pool ls")
	for _, want := range []string{"20MiB of pool default, project quota", "32MiB of pool default, ext4", "on vdc", "(project quotas)"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	m.OK(t, "berth rm --force q")
}

// scratchRefused checks what cannot be made.
func scratchRefused(t *testing.T, m *lab.VM) {
	for _, c := range []struct {
		name, more string
		code       int
		want       string
	}{
		{"unknown", "scratch: [{target: /tmp, size: 1GiB, pool: nosuch}]", 4, "there is no scratch pool nosuch"},
		{"larger", "scratch: [{target: /tmp, size: 1TiB, pool: vg0}]", 3, "is larger than scratch pool vg0"},
		{"full", "scratch: [{target: /a, size: 20GiB, pool: vg0}, {target: /b, size: 30GiB, pool: vg0}]", 3, "scratch pool vg0 is full"},
		{"larger thin", "scratch: [{target: /tmp, size: 30GiB, pool: thin}]", 3, "is larger than scratch pool thin"},
	} {
		file := scratchNode(t, m, "r", c.more)
		if r := m.Run(t, "berth", "apply", "-f", file); r.Code != c.code || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: exit code %d, %s", c.name, r.Code, r.Err)
		}
	}
	if r := m.Run(t, "berth", "pool", "add", "x", "--vg", "nosuch"); r.Code != 4 {
		t.Errorf("a pool of no volume group: %+v", r)
	}
	if r := m.Run(t, "berth", "pool", "add", "x", "--vg", "vg-0", "--thin", "mine"); r.Code != 2 || !strings.Contains(r.Err, "not a thin pool") {
		t.Errorf("a pool of a volume that is no thin pool: %+v", r)
	}
}

// scratchBusy holds a logical volume open while its node is removed. Another one, without the tags, has its name's beginning.
func scratchBusy(t *testing.T, m *lab.VM) {
	file := scratchNode(t, m, "b", "scratch: [{target: /tmp, size: 64MiB, pool: vg0}]")
	m.OK(t, "berth apply -f "+file+"; exec 9</dev/mapper/vg--0-berth*b.*; (exec sleep 1000 >/dev/null 2>&1) & echo $! >/root/holder")
	if r := m.Run(t, "berth", "rm", "--force", "b"); r.Code != 5 || !strings.Contains(r.Err, "has it open") {
		t.Errorf("rm with the volume open: exit code %d, %s", r.Code, r.Err)
	}
	if r := m.Run(t, "berth", "pool", "rm", "vg0"); r.Code != 5 {
		t.Errorf("pool rm: %+v", r)
	}
	m.OK(t, "kill $(cat /root/holder); berth repair; test -z \"$(berth ls -q 2>/dev/null | grep '^b$')\"; ! lvs --noheadings -o lv_name | grep -q b\\\\.")

	// LVM refuses for another reason.
	m.OK(t, "mkdir -p /root/broken")
	m.Write(t, "/root/broken/lvm", "#!/bin/sh\n[ \"$1\" != lvremove ] || { echo 'the metadata area is full' >&2; exit 5; }\nexec /sbin/lvm \"$@\"\n")
	m.OK(t, "chmod 755 /root/broken/lvm; berth apply -f "+file)
	if r := m.Run(t, "bash", "-c", "PATH=/root/broken:$PATH berth rm --force b"); r.Code != 1 || !strings.Contains(r.Err, "the metadata area is full") || !strings.Contains(r.Err, "berth repair tries again") {
		t.Errorf("rm while lvremove fails: exit code %d, %s", r.Code, r.Err)
	}
	m.OK(t, "lvs --noheadings -o lv_name | grep -q b\\.; berth repair; test -z \"$(berth ls -q 2>/dev/null | grep '^b$')\"; ! lvs --noheadings -o lv_name | grep -q b\\.")

	// A node whose records were lost.
	m.OK(t, "berth apply -f "+file+"; kill -9 $(berth show --json b | sed -n 's/^  \"pid\": \\([0-9]*\\),/\\1/p'); berth stop b >/dev/null; rm -r /var/lib/berth/nodes/b")
	if out := m.OK(t, "berth repair"); !strings.Contains(out, "removed scratch volume berth-") {
		t.Errorf("repair of a lost node's volume: %s", out)
	}
}

// scratchKilled kills berth at the points from the first to the last that have to do with a volume.
func scratchKilled(t *testing.T, m *lab.VM, before string) {
	berth := filepath.Join(t.TempDir(), "berth")
	if err := built.Berth(context.Background(), berth, "berthfault"); err != nil {
		t.Fatal(err)
	}
	m.Copy(t, berth, "/usr/local/bin/berth-fault")
	for _, command := range []string{"apply", "rm"} {
		t.Run(command, func(t *testing.T) {
			w := sample.Of(t).Sparse()
			for _, volume := range sample.Some(w, 1, "size: 64MiB, pool: vg0", "size: 64MiB, pool: thin", "size: 300MiB, pool: vg0, fs: xfs", "size: 300MiB, pool: thin, fs: xfs") {
				t.Run(volume, func(t *testing.T) { scratchWalk(t, m, w, before, command, volume) })
			}
		})
	}
}

// scratchWalk kills one command of a node with a volume in a volume group and one in a folder, at the points that a run takes.
func scratchWalk(t *testing.T, m *lab.VM, w sample.Walk, before, command, volume string) {
	file := scratchNode(t, m, "k", "scratch: [{target: /tmp, "+volume+"}, {target: /q, size: 16MiB}]")
	first, killed := "", "berth-fault apply -f "+file
	if command == "rm" {
		first, killed = "berth apply -f "+file, "berth-fault rm --force k"
	}
	m.OK(t, first)
	log := m.OK(t, "rm -f /root/points; BERTH_FAULT_LOG=/root/points "+killed+" >/dev/null; cat /root/points")
	m.OK(t, "berth rm --force k 2>/dev/null || true")
	points := scratchPoints(strings.Split(log, "\n"))
	t.Logf("%d points", len(points))
	for i, stride := w.Points(0); i < len(points); i += stride {
		m.OK(t, first)
		number, _, _ := strings.Cut(points[i], " ")
		if r := m.Run(t, "bash", "-c", "BERTH_FAULT="+number+" "+killed); r.Code != 137 {
			t.Errorf("killed at %s: exit code %d\n%s%s", points[i], r.Code, r.Out, r.Err)
		}
		said := m.OK(t, "berth repair; berth rm --force k 2>/dev/null || true")
		if now := foreign(t, m); now != before {
			t.Fatalf("killed at %s, repair said %q; there was\n%s\nand is\n%s", points[i], said, before, now)
		}
	}
}

// scratchPoints returns the fault points from the first to the last one that concerns a volume.
func scratchPoints(all []string) []string {
	about := func(p string) bool { return strings.Contains(p, "volume") }
	first := slices.IndexFunc(all, about)
	if first < 0 {
		panic("no point has to do with a volume: " + strings.Join(all, "\n"))
	}
	last := first
	for i, p := range all {
		if about(p) {
			last = i
		}
	}
	return all[first : last+1]
}
