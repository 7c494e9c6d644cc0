package lab_test

import (
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/built"
	"berth/test/env"
	"berth/test/lab"
	"berth/test/pair"
	"berth/test/testkit"
)

// TestImages has one host give its images to another over TLS: it stores one, packs it and serves it; the other pulls it, makes a
// node from it, and packs it to one file for nodes of its own.
func TestImages(t *testing.T) {
	t.Parallel()
	small := lab.Machine{Memory: 768, NICs: []lab.NIC{{Segment: "images"}}}
	l := lab.Start(t, lab.Options{Machines: []lab.Machine{small, small}})
	a, b := l.VM(0), l.VM(1)
	programs := t.TempDir()
	testkit.Must(t, built.Puller(t.Context(), programs))
	testkit.Must(t, built.Registry(t.Context(), programs))
	for _, m := range []*lab.VM{a, b} {
		install(t, m)
		m.Copy(t, filepath.Join(programs, "berth-pull"), "/usr/local/bin/berth-pull")
		m.Copy(t, filepath.Join(programs, "berth-registry"), "/usr/local/bin/berth-registry")
	}
	const adapter = "n=$(basename $(ls -d /sys/class/net/e*)); ip link set $n up; ip addr add 192.0.2."
	a.OK(t, adapter+"1/24 dev $n")
	b.OK(t, adapter+"2/24 dev $n")

	a.Copy(t, imagetest.Busybox(t), "/root/worker.tar")
	cert, key := pair.Make(t, net.IPv4(192, 0, 2, 1))
	a.Copy(t, cert, "/root/cert.pem")
	a.Copy(t, key, "/root/key.pem")
	b.Copy(t, cert, "/root/cert.pem")
	a.OK(t, "berth image import /root/worker.tar team/worker:1 && berth image pack team/worker:1 -o /root/worker.erofs")
	a.OK(t, "test $(berth run --image file:/root/worker.erofs --name packed -- hostname) = packed")
	if r := a.Run(t, "berth", "image", "serve", "--listen", "192.0.2.1:5000"); r.Code != 2 || !strings.Contains(r.Err, "TLS") {
		t.Errorf("without TLS: exit code %d, %s", r.Code, r.Err)
	}
	a.OK(t, `systemd-run -q --unit=images --property=Restart=on-failure berth image serve --listen :5000 --tls-cert /root/cert.pem --tls-key /root/key.pem
		until ss -ltn | grep -q :5000; do systemctl is-active -q images; sleep 0.1; done`)

	if r := b.Run(t, "berth", "image", "pull", "192.0.2.1:5000/team/worker:1"); r.Code != 1 || !strings.Contains(r.Err, "certificate") {
		t.Errorf("without its authority: exit code %d, %s", r.Code, r.Err)
	}
	b.OK(t, `mkdir -p /etc/containers/certs.d/192.0.2.1:5000 && cp /root/cert.pem /etc/containers/certs.d/192.0.2.1:5000/ca.crt
		berth image pull 192.0.2.1:5000/team/worker:1 --name worker
		test $(berth run --image oci:worker --name there -- hostname) = there`)
	tree := "cd /var/lib/berth/images/layers/sha256/* && find . -printf '%P %y %m %U:%G %s %T@ %l\\n' | sort | sed 1d"
	if want, got := a.OK(t, tree), b.OK(t, tree); want != got || want == "" {
		t.Errorf("the layer of the first host is\n%s\nof the second\n%s", want, got)
	}
	b.OK(t, `berth image pack worker -o /root/worker.erofs && test $(berth run --image file:/root/worker.erofs --name again -- hostname) = again`)
	a.OK(t, "systemctl stop images; test $(systemctl show -P Result images) = success")
	if r := b.Run(t, "berth", "image", "pull", "192.0.2.1:5000/team/worker:1", "--name", "late"); r.Code != 1 {
		t.Errorf("from a server that ended: exit code %d, %s", r.Code, r.Err)
	}
}

// TestBuiltDebianBoots boots systemd in a node of what berth image build debian makes. It is made on the machine of the test: those of
// the lab reach no network.
func TestBuiltDebianBoots(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{Memory: 1024, Disks: []lab.Disk{{Size: 1 << 30}}})
	b := env.New(t, "")
	wrapper, err := filepath.Abs("../examples") // keeps what it made
	testkit.Must(t, err)
	b.Env = []string{"PATH=" + wrapper + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd := b.Command("image", "build", "debian") // for minutes, and so not by OK
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	var all []struct{ Layers []string }
	testkit.Must(t, json.Unmarshal([]byte(b.OK(t, "image", "ls", "--json")), &all))
	root := filepath.Join(b.Root, "lib/images/layers/sha256", strings.TrimPrefix(all[0].Layers[0], "sha256:"))
	archive := filepath.Join(b.Dir(), "root.tar.zst")
	if out, err := exec.Command("tar", "--zstd", "--xattrs", "-C", root, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.Copy(t, archive, "/root/root.tar.zst")
	m.OK(t, `mkfs.ext4 -q /dev/vdb && mkdir -p /var/lib/berth && mount /dev/vdb /mnt && cp -a /var/lib/berth/. /mnt/ && umount /mnt && mount /dev/vdb /var/lib/berth
		berth image import /root/root.tar.zst debian`)
	node(t, m, "name: booted\nimage: oci:debian\ncommand: [/sbin/init]\nmemory: {max: 256MiB}\n")
	state := m.OK(t, `while awaiting; do s=$(berth exec booted -- systemctl is-system-running 2>/dev/null || true); case $s in running|degraded) break;; esac; done
		echo $s; berth exec booted -- systemctl --failed --no-legend --plain`)
	if state != "running" {
		t.Errorf("systemd of the node says %s", state)
	}
	m.OK(t, "berth stop --grace 60s booted")
	if s := show(t, m, "booted"); s.State != "stopped" || s.Exit == nil || s.Exit.Signal != "SIGINT" { // it halted by itself
		t.Errorf("status after stop: %+v %+v", s, s.Exit)
	}
}
