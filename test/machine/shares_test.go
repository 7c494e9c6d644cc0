package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/runner/machine"
	"berth/internal/sys/treetar"
	"berth/test/testkit"
)

// mounted is what TestMounts gives its machine.
type mounted struct {
	data  string // a folder of the host, in which a small file system is mounted at small
	still string // another, read-only and with the host's ids
	lists bool   // its file system has access control lists
}

func folders(t *testing.T) mounted {
	t.Helper()
	top := t.TempDir()
	m := mounted{data: filepath.Join(top, "data"), still: filepath.Join(top, "still")}
	for path, text := range map[string]string{
		"data/hello": "hello\n", "data/of-app": "app\n", "data/listed": "", "data/project/old": "", "still/word": "word\n", "outside": "the host's\n",
	} {
		path = filepath.Join(top, path)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	in := func(name string) string { return filepath.Join(m.data, name) }
	testkit.Must(t, os.Chmod(m.data, 0o777))
	testkit.Must(t, os.Chmod(filepath.Join(m.still, "word"), 0o644))
	testkit.Must(t, os.Chown(in("of-app"), 1000, 1000))
	testkit.Must(t, os.Symlink("../outside", in("out")))
	for name, mode := range map[string]uint32{"listed": 0o640, "project": 0o2775, "project/old": 0o660} {
		testkit.Must(t, os.Chown(in(name), 0, 2000))
		testkit.Must(t, unix.Chmod(in(name), mode))
	}
	// Its group may read, and user 1001 write. The group's bits of its mode are the list's mask: rw.
	var list []byte
	for _, e := range [][3]uint32{{1, 6, 1<<32 - 1}, {2, 6, 1001}, {4, 4, 1<<32 - 1}, {16, 6, 1<<32 - 1}, {32, 0, 1<<32 - 1}} {
		list = binary.LittleEndian.AppendUint16(list, uint16(e[0]))
		list = binary.LittleEndian.AppendUint16(list, uint16(e[1]))
		list = binary.LittleEndian.AppendUint32(list, e[2])
	}
	err := unix.Setxattr(in("listed"), treetar.AccessList, append([]byte{2, 0, 0, 0}, list...), 0)
	if m.lists = err == nil; !m.lists && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	testkit.Must(t, os.Mkdir(in("small"), 0o755))
	testkit.Must(t, unix.Mount("small", in("small"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m,mode=0755"))
	t.Cleanup(func() { testkit.Must(t, unix.Unmount(in("small"), unix.MNT_DETACH)) })
	return m
}

// TestMounts: a machine has the folders of the host that its spec names, as a container has them, and no more of the host; the daemon that
// serves them sees nothing else, has a bound, and the machine ends with it; and where the machine ends by itself, its daemons are not to blame.
func TestMounts(t *testing.T) {
	needs(t)
	daemon, err := machine.FindShareDaemon()
	if err != nil {
		t.Skipf("needs virtiofsd: %v", err)
	}
	t.Logf("served by %s", daemon)
	m := folders(t)
	file := spec(t, "m7", fmt.Sprintf("mounts: [{source: %s, target: /data}, {source: %s, target: /data/still, gateway: virtiofs, read_only: true, map: identity}]\n", m.data, m.still))
	text, err := os.ReadFile(file)
	testkit.Must(t, err)
	if _, code := berth(t, "", "plan", "-f", file); code != 2 {
		t.Errorf("too little memory for the daemons: exit code %d, want 2", code)
	}
	text = bytes.Replace(text, []byte("600MiB"), []byte("640MiB"), 1)
	text = bytes.Replace(text, []byte("while :; do sleep 0.1; done"), []byte("while [ ! -e /data/off ]; do sleep 0.1; done; reboot -f"), 1)
	testkit.Must(t, os.WriteFile(file, text, 0o600))
	if cg, err := host.ReadMounted(); err == nil && cg.Has("io") != "v2" {
		limited := filepath.Join(t.TempDir(), "limited.yaml")
		testkit.Must(t, os.WriteFile(limited, fmt.Appendf(text, "io: [{name: d, path: %s, write: {rate: 1MB/s}}]\n", m.data), 0o600))
		if _, code := berth(t, "", "plan", "-f", limited); code != 3 {
			t.Errorf("a limit of writes that cgroup v1 cannot hold: exit code %d, want 3", code)
		}
	}
	if plan := must(t, "plan", "-f", file); !strings.Contains(plan, m.still+" at /data/still by virtiofs, read-only") {
		t.Errorf("the plan is:\n%s", plan)
	}
	must(t, "apply", "-f", file)
	usedInside(t, m, daemon)
	copied(t, m)
	givesBack(t)
	onlyKnownModels(t, "m7")
	daemons := daemonsFromOutside(t, m)

	testkit.Must(t, unix.Kill(daemons[0], unix.SIGKILL))
	testkit.Eventually(t, "the machine ends with a daemon", func() bool { return strings.Contains(must(t, "ls"), "exited 137") })
	const blame = "the daemon of mount /data has ended"
	if out, _ := berth(t, "", "logs", "m7"); !strings.Contains(out, blame) {
		t.Errorf("logs say %q", out)
	}
	for _, pid := range daemons {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
	must(t, "start", "m7")
	testkit.Must(t, os.WriteFile(filepath.Join(m.data, "off"), nil, 0o644))
	testkit.Eventually(t, "the machine resets itself", func() bool { return strings.Contains(must(t, "ls"), "exited") })
	if out := must(t, "ls"); !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool { return strings.Contains(line+" ", "exited 1 ") }) {
		t.Errorf("a machine that resets itself ends so:\n%s", out)
	}
	if out, _ := berth(t, "", "logs", "m7"); strings.Count(out, blame) != 1 {
		t.Errorf("after a reset logs say %q", out)
	}
	must(t, "rm", "--force", "m7")
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(mounts, []byte(bench.Root)) {
		t.Errorf("mounts are left:\n%s", mounts)
	}
}

// usedInside uses the mounts of m7 as root in the machine, and as others.
func usedInside(t *testing.T, m mounted, daemon *machine.ShareDaemon) {
	t.Helper()
	inside := func(user, script string) string {
		t.Helper()
		return must(t, "exec", "-u", user, "m7", "--", "sh", "-c", "{ "+script+"; } 2>&1; :")
	}
	asRoot := inside("root", `cat /data/hello /data/still/word; echo new >/data/new; chmod 4755 /data/new; echo "the guest's" >/outside; cat /data/out
		echo x >/data/still/x; mount -o remount,rw /data/still && echo x >/data/still/x; stat -c "still of %u" /data/still/word
		mknod /data/disk b 8 0; chown 70000 /data/of-app; dd if=/dev/zero of=/data/small/full bs=64k count=32; grep virtiofs /proc/mounts`)
	for _, want := range []string{
		"hello\nword\n", "the guest's\n", "still of 65534\n",
		"mknod: /data/disk: Operation not permitted", "chown: /data/of-app: Invalid argument", "No space left on device",
		"mount0 /data virtiofs rw,nosuid,nodev", "mount1 /data/still virtiofs rw,nosuid,nodev",
	} {
		if !strings.Contains(asRoot, want) {
			t.Errorf("root in the machine sees no %q:\n%s", want, asRoot)
		}
	}
	if n := strings.Count(asRoot, "can't create /data/still/x: Read-only file system\n"); n != 2 { // the guest's word, then the host's
		t.Errorf("a read-only folder refused %d writes, want 2:\n%s", n, asRoot)
	}
	asApp := inside("1000:1000", `cat /data/of-app; echo app >/data/new-of-app; ln -s x /data/link-of-app; cat /data/hello`)
	if !strings.HasPrefix(asApp, "app\n") || !strings.Contains(asApp, "Permission denied") {
		t.Errorf("a user in the machine sees:\n%s", asApp)
	}
	for name, want := range map[string][2]uint32{
		"new": {0, unix.S_IFREG | 0o4755}, "new-of-app": {1000, unix.S_IFREG | 0o644}, "link-of-app": {1000, unix.S_IFLNK | 0o777}, "small/full": {0, unix.S_IFREG | 0o644},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(m.data, name), &st); err != nil || st.Uid != want[0] || st.Gid != want[0] || st.Mode != want[1] {
			t.Errorf("%s belongs on the host to %d:%d with mode %o, want %d and %o: %v", name, st.Uid, st.Gid, st.Mode, want[0], want[1], err)
		}
	}
	if left, _ := os.ReadDir(m.still); len(left) != 1 {
		t.Errorf("the folder that is read-only has %v", left)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(m.data, "hello"), []byte("changed\n"), 0))
	testkit.Must(t, os.Chmod(filepath.Join(m.data, "hello"), 0o644))
	// The docs say it: a list is not asked, neither for what it refuses the group, nor for what it gives a user.
	asGroup, asListed := inside("3000:2000", `echo group >>/data/listed`), inside("1001:1001", `cat /data/hello; echo user >>/data/listed`)
	if now, err := os.ReadFile(filepath.Join(m.data, "listed")); m.lists && string(now) != "group\n" || err != nil || !strings.Contains(asListed, "Permission denied") {
		t.Errorf("a file with a list has %q: %v: %s%s", now, err, asGroup, asListed)
	}
	if !strings.HasPrefix(asListed, "changed\n") {
		t.Errorf("after a change on the host the machine reads %q", asListed)
	}
	// And this: QEMU's daemon makes files without the other groups of who makes them.
	inside("root", `echo project:x:2000:daemon >>/etc/group; su -s /bin/sh daemon -c "echo x >>/data/project/old; echo x >/data/project/new"`)
	old, err := os.ReadFile(filepath.Join(m.data, "project/old"))
	if string(old) != "x\n" {
		t.Errorf("a user of a folder's group, by another group than the first, writes to a file %q: %v", old, err)
	}
	if _, err := os.Stat(filepath.Join(m.data, "project/new")); (err == nil) == daemon.Legacy {
		t.Errorf("a user of a folder's group, by another group than the first, makes a file, with %s: %v", daemon, err)
	}
}

// copied copies files from and to a mount of m7. export leaves mounts out.
func copied(t *testing.T, m mounted) {
	t.Helper()
	dir := t.TempDir()
	must(t, "cp", "m7:/data/hello", dir)
	must(t, "cp", filepath.Join(dir, "hello"), "m7:/data/copy")
	if b, err := os.ReadFile(filepath.Join(m.data, "copy")); string(b) != "changed\n" {
		t.Errorf("what was copied out of and into a mount is %q: %v", b, err)
	}
	if all := names(t, m.data); slices.ContainsFunc(all, func(name string) bool { return strings.HasPrefix(name, ".berth-copy-") }) {
		t.Errorf("cp left %q", all)
	}
	if list := exported(t, "m7"); !slices.Contains(list, "data/") || slices.Contains(list, "data/hello") {
		t.Errorf("exported are %q", list)
	}
}

// givesBack: what m7 has no more goes back to the host, also where the daemons have its memory, too.
func givesBack(t *testing.T) {
	t.Helper()
	must(t, "exec", "m7", "--", "dd", "if=/dev/zero", "of=/full", "bs=1M", "count=96")
	full := used(t, "m7")
	must(t, "exec", "m7", "--", "rm", "/full")
	must(t, "set", "m7", "machine.memory=160MiB")
	testkit.Eventually(t, "what the guest has freed is back with the host", func() bool { return used(t, "m7") < full-64<<20 })
	must(t, "exec", "m7", "--", "cat", "/data/hello")
}

// daemonsFromOutside checks what the daemons of m7 have of the host, and returns those that serve, in the order of the mounts.
func daemonsFromOutside(t *testing.T, m mounted) (serving []int) {
	t.Helper()
	monitor := monitorOf(t, "m7")
	emulator := childOf(t, monitor)
	theirs, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", monitor))
	testkit.Must(t, err)
	serving = make([]int, 2)
	for _, outer := range childrenOf(monitor) {
		if outer == emulator {
			continue
		}
		inner := childrenOf(outer)
		if len(inner) != 1 {
			t.Fatalf("daemon %d has the children %v", outer, inner)
		}
		words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", inner[0]))
		testkit.Must(t, err)
		for i := range serving {
			if bytes.Contains(words, fmt.Appendf(nil, "=/shares/%d\x00", i)) {
				serving[i] = inner[0]
			}
		}
	}
	if slices.Contains(serving, 0) {
		t.Fatalf("the machine has the daemons %v", serving)
	}
	for i, pid := range serving {
		at := func(name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
		read := func(name string) string {
			b, err := os.ReadFile(at(name))
			testkit.Must(t, err)
			return string(b)
		}
		status := read("status")
		for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1"} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("daemon %d lacks %q:\n%s", pid, want, status)
			}
		}
		// No others, and these in its own user namespace.
		const most = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"} {
			_, rest, _ := strings.Cut(status, set+":\t")
			caps, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 64)
			if err != nil || caps&^most != 0 {
				t.Errorf("daemon %d has %s %x: %v", pid, set, caps, err)
			}
		}
		if ids := read("uid_map"); ids == string(theirs) || !strings.HasSuffix(strings.TrimSpace(ids), " 65536") || strings.Contains(status, "Uid:\t0\t") {
			t.Errorf("daemon %d has the map %q", pid, ids)
		}
		source := []string{m.data, m.still}[i]
		want, got := names(t, source), names(t, at("root"))
		if !slices.Equal(want, got) {
			t.Errorf("the root of daemon %d has %v, want %v", pid, got, want)
		}
		if all := read("mountinfo"); strings.Count(all, "\n") != 2-i {
			t.Errorf("daemon %d sees the mounts:\n%s", pid, all)
		} else if access := strings.Fields(all)[5]; !strings.HasPrefix(access, []string{"rw", "ro"}[i]+",nosuid,nodev") {
			t.Errorf("daemon %d sees its folder %s", pid, access)
		}
		if net := read("net/dev"); strings.Count(net, ":") != 1 {
			t.Errorf("daemon %d sees interfaces:\n%s", pid, net)
		}
		if groups := read("cgroup"); !strings.Contains(groups, "/m7") {
			t.Errorf("daemon %d is in no group of the node:\n%s", pid, groups)
		}
		_, files, _ := strings.Cut(read("limits"), "Max open files")
		if most, err := strconv.Atoi(strings.Fields(files)[1]); err != nil || most > 20_000 {
			t.Errorf("daemon %d may open %d files: %v", pid, most, err)
		}
		for _, ns := range []string{"mnt", "pid", "net", "user", "ipc", "uts", "cgroup"} {
			own, _ := os.Readlink(at("ns/" + ns))
			if hosts, _ := os.Readlink("/proc/self/ns/" + ns); own == "" || own == hosts {
				t.Errorf("daemon %d is in the host's %s namespace: %s", pid, ns, own)
			}
		}
		descriptors(t, pid, emulator)
	}
	return serving
}

// descriptors checks that a daemon has nothing open of the host but its folder, and of others the memory of its guest.
func descriptors(t *testing.T, pid, emulator int) {
	t.Helper()
	at := func(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }
	file := func(path string) (is [2]uint64, size int64) {
		var st unix.Stat_t
		_ = unix.Stat(path, &st) // one that is closed meanwhile is nobody's
		return [2]uint64{st.Dev, st.Ino}, st.Size
	}
	mine, err := os.ReadFile(at(pid, "mountinfo"))
	testkit.Must(t, err)
	var mounts []string
	for line := range strings.Lines(string(mine)) {
		mounts = append(mounts, strings.Fields(line)[0])
	}
	var memory [][2]uint64
	for _, name := range names(t, at(emulator, "fd")) {
		if to, _ := os.Readlink(at(emulator, "fd/"+name)); strings.HasPrefix(to, "/memfd:memory-backend") {
			is, _ := file(at(emulator, "fd/"+name))
			memory = append(memory, is)
		}
	}
	hosts, _ := file("/proc")
	for _, name := range names(t, at(pid, "fd")) {
		path := at(pid, "fd/"+name)
		to, err := os.Readlink(path)
		if err != nil || slices.ContainsFunc([]string{"anon_inode:", "socket:", "pipe:"}, func(p string) bool { return strings.HasPrefix(to, p) }) {
			continue
		}
		is, size := file(path)
		var fs unix.Statfs_t
		_ = unix.Statfs(path, &fs)
		info, _ := os.ReadFile(at(pid, "fdinfo/"+name))
		_, mount, _ := strings.Cut(string(info), "mnt_id:\t")
		mount, _, _ = strings.Cut(mount, "\n")
		switch {
		case strings.HasPrefix(to, "/memfd:berth-machine") && size == 0: // its standard input and output
		case slices.Contains(memory, is):
		case fs.Type == unix.PROC_SUPER_MAGIC && is[0] != hosts[0]: // of its own PID namespace
		case slices.Contains(mounts, mount):
		default:
			t.Errorf("daemon %d has descriptor %s: %s, of mount %s", pid, name, to, mount)
		}
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testkit.Must(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
