package lab_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/image/imagetest"
	"berth/test/lab"
)

// TestPackedImages runs twenty nodes from one erofs and one from a squashfs, which came from another host, on Debian's kernel and
// cgroup v2: one loop device each, also after a reboot, and nothing after the last node.
func TestPackedImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"mkfs.erofs", "--quiet", "-zlz4hc", filepath.Join(dir, "x.erofs"), imagetest.BusyboxDir(t)},
		{"mksquashfs", imagetest.BusyboxDir(t), filepath.Join(dir, "x.squashfs"), "-quiet", "-no-progress"},
	} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Skipf("no %s: install Debian's packages erofs-utils and squashfs-tools", args[0])
		}
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	m := start(t, lab.Machine{})
	for _, name := range []string{"x.erofs", "x.squashfs"} {
		m.Copy(t, filepath.Join(dir, name), "/srv/"+name)
	}
	const each = "name: %s\nimage: file:/srv/x.%s\ncommand: [sleep, infinity]\n"
	var specs, names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("e%02d", i))
		specs = append(specs, fmt.Sprintf(each, names[i], "erofs"))
	}
	names = append(names, "s1")
	m.Write(t, "/root/nodes.yaml", strings.Join(append(specs, fmt.Sprintf(each, "s1", "squashfs")), "---\n"))
	if r := m.Run(t, "berth", "apply", "-f", "/root/nodes.yaml"); r.Code != 3 || !strings.Contains(r.Err, "berth image trust /srv/x.erofs") {
		t.Fatalf("without trust: %+v", r)
	}
	loops := func(what, want string) {
		t.Helper()
		if got := strings.Fields(m.OK(t, "cat /sys/block/loop*/loop/backing_file 2>/dev/null | wc -l")); strings.Join(got, " ") != want {
			t.Errorf("%s: %s loop devices, not %s:\n%s", what, got, want, m.OK(t, "losetup -a; berth ls"))
		}
	}
	all := strings.Join(names, " ")
	m.OK(t, "berth apply --trust -f /root/nodes.yaml; berth exec e19 -- sh -c 'echo >/mine; grep daemon /etc/passwd'; berth exec s1 -- grep daemon /etc/passwd")
	loops("21 nodes run", "2")
	m.OK(t, "! berth exec e00 -- ls /mine 2>/dev/null; ! berth image rm file:/srv/x.erofs 2>/dev/null")
	m.Reboot(t)
	loops("after the reboot", "0")
	m.OK(t, "berth start e00 e19 s1; berth exec e19 -- ls /mine")
	loops("three nodes run again", "2")
	m.OK(t, "berth rm --force "+all+"; test -z \"$(ls /var/lib/berth/nodes)\"")
	m.OK(t, "while awaiting; do grep -q . /sys/block/loop*/loop/backing_file 2>/dev/null || exit 0; done; losetup -a; exit 1")
	m.OK(t, "berth image rm file:/srv/x.erofs file:/srv/x.squashfs; test -z \"$(ls /var/lib/berth/images/packed/files)\"")
}
