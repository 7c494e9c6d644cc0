package security

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/internal/runner/oci"
	"berth/test/testkit"
)

// TestWithoutUserNamespace checks what still holds when the node's root is the host's root, and that ls marks such a node.
func TestWithoutUserNamespace(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		dir := imagetest.BusyboxDir(t)
		addProbe(t, dir)
		name := w.up(t, "image: dir:"+dir+"\ncommand: [/bin/sleep, \"100000\"]\nuser_namespace: false\nnetwork: [{name: eth0, mode: bridge, address: [192.0.2.78/24]}]")
		ask := func(answer any, args ...string) {
			t.Helper()
			decode(t, w.OK(t, append([]string{"exec", name, "--", "/probe"}, args...)...), answer)
		}
		line := ""
		for l := range strings.Lines(w.OK(t, "ls")) {
			if strings.HasPrefix(l, name) {
				line = l
			}
		}
		if !strings.Contains(line, "NO-USERNS") {
			t.Errorf("ls: %q", line)
		}

		refused := map[string]string{}
		ask(&refused, "refused")
		checkRefused(t, refused)
		written := map[string]string{}
		ask(&written, append([]string{"write"}, hostSettings()...)...)
		checkNotWritten(t, written)
		var pids []int
		ask(&pids, "pids")
		if len(pids) != 2 {
			t.Errorf("the node sees the processes %v", pids)
		}
		devices := map[string]string{}
		ask(&devices, "devices")
		if diff := cmp.Diff(standardDevices(), devices); diff != "" {
			t.Error(diff)
		}
		status := map[string]string{}
		ask(&status, "status", "self")
		want := fmt.Sprintf("%016x", capabilityMask(t, oci.CommandCapabilities()))
		if status["CapEff"] != want || status["CapBnd"] != want || status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" {
			t.Errorf("its rights: %v", status)
		}
		read := map[string]string{}
		ask(&read, "read", "/proc/kcore", "/proc/kmsg", "/proc/kpageflags", "/proc/kpagecount", "/proc/kpagecgroup", "/proc/timer_list",
			"/proc/keys", "/proc/slabinfo", "/proc/vmallocinfo", "/sys/kernel/slab")
		for path, what := range read {
			if strings.HasPrefix(what, "read") {
				t.Errorf("%s: %s", path, what)
			}
		}
		for _, try := range []string{"ip addr add 192.0.2.79/24 dev eth0", "ip link set eth0 mtu 1400", "ip link set eth0 down"} {
			if _, _, code := w.Try("exec", name, "--", "/bin/sh", "-c", try); code == 0 {
				t.Errorf("%s: done", try)
			}
		}

		// Weaker, and why the documentation says so: a set-user-id program in its delta is the host's root's. That the
		// delta is closed is all that stands between it and the host's users.
		got := map[string]string{}
		if ask(&got, "install", "/suid"); got["/suid"] != "ok" {
			t.Fatal(got)
		}
		suid := filepath.Join(w.Root, "lib/nodes", name, "delta/upper/suid")
		var st unix.Stat_t
		if err := unix.Stat(suid, &st); err != nil || st.Uid != 0 {
			t.Errorf("the program belongs to user %d (%v): the documentation says root", st.Uid, err)
		}
		if err := asUser(exec.Command(suid, "identity"), nobody).Run(); err == nil {
			t.Error("an ordinary user of the host runs the node's set-user-id root program")
		}
	})
}

// TestImageHostNeedsUserNamespace checks that image host is refused without a user namespace: the node's root could read the
// host's secrets.
func TestImageHostNeedsUserNamespace(t *testing.T) {
	w := anyRuntime(t)
	if _, stderr, code := w.Try("run", "--image", "host", "--no-user-namespace", "--", "/bin/true"); code != 125 || !strings.Contains(stderr, "secrets") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestBoundFolder checks files that a node writes through an idmapped mount. They belong to the host's ids of the same numbers, so
// the node's root can leave set-user-id root programs there, and programs with file capabilities. They have no effect in the
// node but do on the host: the documentation says how to close such a folder, show marks it, and nosuid_source refuses it.
func TestBoundFolder(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		dir := t.TempDir()
		for _, c := range []struct{ how, mapping string }{{"idmapped", "idmapped"}, {"as it is", "identity"}} {
			name := w.up(t, "image: host\nmounts: [{source: "+build.probeDir+", target: /probe}, {source: "+dir+", target: /data, map: "+c.mapping+"}]")
			got := map[string]string{}
			w.in(t, name, &got, "install", "/data/"+c.mapping)
			var st unix.Stat_t
			err := unix.Stat(filepath.Join(dir, c.mapping), &st)
			if c.mapping == "identity" {
				if got["/data/identity"] != "EACCES" {
					t.Errorf("a folder of root's, ids as they are: %v", got)
				}
				continue
			}
			if err != nil || st.Uid != 0 || st.Mode&unix.S_ISUID == 0 {
				t.Errorf("the program is user %d's, mode %o (%v): the documentation says root's", st.Uid, st.Mode, err)
			}
			// Inside: mounted nosuid, and no new privileges; another user of the node gains nothing.
			out := w.OK(t, "exec", name, "--", "/bin/sh", "-c", "grep ' /data ' /proc/self/mountinfo")
			if !strings.Contains(out, "nosuid") || !strings.Contains(out, "nodev") {
				t.Errorf("the mount's flags: %s", out)
			}
		}
		capabilitiesInBoundFolder(t, w)
	})
}

// capabilitiesInBoundFolder is the part of TestBoundFolder about file capabilities.
func capabilitiesInBoundFolder(t *testing.T, w *world) {
	top := testkit.Dir(t, "")
	dir := filepath.Join(top, "source")
	testkit.Must(t, os.Mkdir(dir, 0o700))
	mount := "image: host\nmounts: [{source: " + build.probeDir + ", target: /probe, read_only: true}, {source: " + dir + ", target: /data%s}]"
	name := w.up(t, fmt.Sprintf(mount, ""))
	got := map[string]string{}
	w.in(t, name, &got, "empower", "/data/tool")
	// The source was closed: the node opens it.
	w.OK(t, "exec", name, "--", "/bin/chmod", "755", "/data")
	var shown struct {
		Exposed []struct{ Target, Why string } `json:"exposed"`
	}
	decode(t, w.OK(t, "show", name, "--json"), &shown)
	runs := func() (string, error) { // as an ordinary user of the host
		cmd := exec.Command(filepath.Join(dir, "tool"), "status", "self")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output()
		if err != nil {
			return "", err
		}
		var status map[string]string
		decode(t, string(out), &status)
		return status["CapEff"], nil
	}
	const dacOverride, none = "0000000000000002", "0000000000000000"
	caps, err := runs()
	switch {
	case err != nil || got["/data/tool"] != "ok":
		t.Fatalf("the node's tool: %v, %v", got, err)
	case len(shown.Exposed) == 1 && shown.Exposed[0].Target == "/data" && caps != dacOverride,
		len(shown.Exposed) == 0 && caps != none, len(shown.Exposed) > 1: // 0: this host's /tmp is nosuid
		t.Errorf("show says %+v, and the tool's capabilities are %s", shown, caps)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	spec := "name: " + unique(t) + "\n" + fmt.Sprintf(mount, ", nosuid_source: true") + "\ncommand: [/bin/sleep, infinity]\n"
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := w.Try("apply", "-f", file); len(shown.Exposed) > 0 && (code != 3 || !strings.Contains(stderr, shown.Exposed[0].Why)) {
		t.Errorf("nosuid_source: exit code %d: %s", code, stderr)
	}
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	if caps, err := runs(); err == nil {
		t.Errorf("in a closed folder: the tool's capabilities are %s", caps)
	}
	w.up(t, fmt.Sprintf(mount, ", nosuid_source: true"))
	if out := w.OK(t, "show", name); strings.Contains(out, "EXPOSED") {
		t.Errorf("closed, and still: %s", out)
	}
}

// TestSourcesRefused checks that sources that no node may mount are refused, also under other names.
func TestSourcesRefused(t *testing.T) {
	w := anyRuntime(t)
	links := t.TempDir()
	for name, target := range map[string]string{"root": "/", "proc": "/proc", "lib": filepath.Join(w.Root, "lib"), "fd": "/proc/self/root"} {
		if err := os.Symlink(target, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{
		"/", "/proc", "/sys", "/dev", "/proc/1/root", "/sys/fs/cgroup", "/dev/mem", w.Root, filepath.Join(w.Root, "run"), filepath.Join(w.Root, "lib"),
		filepath.Join(w.Root, "run/keeper.sock"), filepath.Join(links, "root"), filepath.Join(links, "proc"), filepath.Join(links, "lib"), filepath.Join(links, "fd"),
	} {
		if stdout, stderr, code := w.Try("run", "--image", "host", "--mount", source+":/data", "--", "/bin/ls", "/data"); code != 125 {
			t.Errorf("%s: exit code %d: %s%s", source, code, stdout, stderr)
		}
	}
	for _, target := range []string{"/proc", "/proc/sys", "/sys/fs/cgroup", "/dev", "/dev/pts", "/", "/data/../proc", "../data", "/./proc"} {
		if stdout, stderr, code := w.Try("run", "--image", "host", "--mount", links+":"+target, "--", "/bin/ls", "/data"); code != 125 {
			t.Errorf("%s: exit code %d: %s%s", target, code, stdout, stderr)
		}
	}
}
