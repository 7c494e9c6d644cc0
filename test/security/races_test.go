package security

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/image/imagetest"
	"berth/test/env"
)

// TestEnteringProcess lets the node's root attack each process that enters the node by exec before it executes the command. The
// attacker cannot open, trace or read anything of the process, nor write to its program.
func TestEnteringProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		program, err := exec.LookPath(w.runtime)
		if err != nil {
			t.Fatal(err)
		}
		before := []string{sum(t, program), sum(t, build.berth)}
		dir := imagetest.BusyboxDir(t)
		addProbe(t, dir)
		// Its interpreter is the entering program itself: the runtime would run again inside the node.
		if err := os.WriteFile(filepath.Join(dir, "again"), []byte("#!/proc/self/exe\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		image := "image: dir:" + dir + "\ncommand: [/bin/sleep, \"100000\"]\n"
		for how, spec := range map[string]string{"user namespace": image, "no user namespace": image + "user_namespace: false\n"} {
			t.Run(how, func(t *testing.T) {
				name := w.up(t, spec)
				got := stalkExecs(t, w, name)
				t.Logf("%+v", got)
				for what, program := range got.Faults {
					t.Errorf("the node's root can %s: of a process that runs %s", what, program)
				}
				if got.Entering == 0 || got.Own["read its environment"] == 0 {
					t.Errorf("%d seen before they were commands, %v done to commands: the probe sees too little to tell", got.Entering, got.Own)
				}
			})
		}
		if after := []string{sum(t, program), sum(t, build.berth)}; !slices.Equal(before, after) {
			t.Errorf("a program of the host's was written to")
		}
	})
}

// stalkExecs has the probe watch a node while commands enter it.
func stalkExecs(t *testing.T, w *world, node string) (got struct {
	Entering int
	Own      map[string]int
	Faults   map[string]string
},
) {
	t.Helper()
	stalker := w.Command("exec", "-i", node, "--", "/probe", "stalk")
	end, err := stalker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() {
		stdout, stderr, code := env.Try(stalker)
		if code != 0 {
			stdout = stderr
		}
		done <- stdout
	}()
	for i := range 40 {
		// Some commands last a moment: successful attacks on them prove that the probe's attacks work.
		command := []string{"/bin/sleep", "0.05"}
		if i%4 == 3 {
			command = []string{"/again", "--version"}
		}
		w.Try(append([]string{"exec", node, "--"}, command...)...)
	}
	end.Close()
	decode(t, <-done, &got)
	return got
}

func sum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(data)
	return string(h[:])
}

// TestExecFolderIsALink replaces the working folder of commands by a link. A later exec must not follow it to a descriptor that the
// runtime has open on the host.
func TestExecFolderIsALink(t *testing.T) {
	mark := "berth-secret-" + unique(t)
	plant(t, "/etc/"+mark, "the secret", 0o644)
	eachRuntime(t, func(t *testing.T, w *world) {
		busybox := imagetest.BusyboxImage(t)
		busybox.Config.WorkingDir = "/work"
		busybox.Layers = append(slices.Clone(busybox.Layers), imagetest.Layer(t, imagetest.Entry{Name: "work", Type: tar.TypeDir}))
		dir := imagetest.OCILayout(t, busybox)
		spec := "image: oci-layout:" + dir + "\ncommand: [/bin/sleep, \"100000\"]\nmounts: [{source: " + build.probeDir + ", target: /probe, read_only: true}]"
		escaped := strings.Repeat("../", 12) + "etc/" + mark
		for _, link := range []string{"/proc/self/fd/3", "/proc/self/fd/5", "/proc/self/fd/6", "/proc/self/fd/7", "/proc/self/fd/8", "/proc/self/fd/9", "/proc/self/fd/10", "/proc/1/cwd"} {
			name := w.up(t, spec)
			if got := w.OK(t, "exec", name, "--", "/bin/pwd"); got != "/work\n" {
				t.Fatalf("commands begin in %q", got)
			}
			w.OK(t, "exec", name, "--", "/bin/sh", "-c", "cd /; rm -rf /work; ln -s "+link+" /work")
			stdout, _, code := w.Try("exec", name, "--", "/probe/probe", "read", escaped)
			got := map[string]string{}
			if code == 0 {
				decode(t, stdout, &got)
			}
			if strings.HasPrefix(got[escaped], "read") {
				t.Errorf("folder %s: the node reads the host's file", link)
			}
		}
	})
}

// TestMountTargetSwapped swaps, while a node starts, the target of a mount below a shared folder with a link and back. The mount
// must be inside the node, or the start must fail.
func TestMountTargetSwapped(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		shared, source, mark := t.TempDir(), t.TempDir(), unique(t)
		plant(t, filepath.Join(source, mark), "mounted", 0o644)
		for _, d := range []string{shared, source} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		target := filepath.Join(shared, "sub")
		if err := errors.Join(os.Mkdir(target, 0o755), os.Symlink("../../../../../../../../../etc", filepath.Join(shared, "link"))); err != nil {
			t.Fatal(err)
		}
		stop, swapped := make(chan bool), make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					swapped <- n
					return
				default:
					// One atomic exchange, so the name always exists.
					if unix.Renameat2(unix.AT_FDCWD, target, unix.AT_FDCWD, filepath.Join(shared, "link"), unix.RENAME_EXCHANGE) == nil {
						n++
					}
				}
			}
		}()
		started, where := 0, map[string]int{}
		for range 25 {
			stdout, _, code := w.Try("run", "--image", "host", "--mount", shared+":/share", "--mount", source+":/share/sub", "--", "/bin/cat", "/proc/self/mountinfo")
			if _, err := os.Lstat("/etc/" + mark); err == nil {
				t.Fatal("the folder is mounted on the host's /etc")
			}
			if code != 0 {
				continue
			}
			started++
			at := ""
			for line := range strings.Lines(stdout) {
				if f := strings.Fields(line); strings.HasSuffix(source, f[3]) && f[3] != "/" {
					at = f[4]
				}
			}
			if where[at]++; at != "/share/sub" && at != "/share/link" && at != "/etc" {
				t.Errorf("the mount is at %q in the node:\n%s", at, stdout)
			}
		}
		stop <- true
		if n := <-swapped; n < 1000 {
			t.Errorf("swapped %d times only: no race", n)
		}
		t.Logf("%d of 25 started, with the mount at %v", started, where)
		if text, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(text), source) || strings.Contains(string(text), shared) {
			t.Errorf("mounts of the node's are on the host: %v", err)
		}
	})
}

// TestSignalsStayInside lets a command signal its group, all processes and its parent. No process of the host may receive a
// signal, not even in its caller's group.
func TestSignalsStayInside(t *testing.T) {
	eachRuntime(t, func(t *testing.T, w *world) {
		for how, args := range callers(t, w) {
			t.Run(how, func(t *testing.T) {
				bystander := exec.Command("/bin/sleep", "600")
				bystander.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				if err := bystander.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
				before, err := syscall.Getpriority(syscall.PRIO_PROCESS, bystander.Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				cmd := w.Command(append(slices.Clone(args), "reach")...)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: bystander.Process.Pid}
				stdout, stderr, code := env.Try(cmd)
				if code != 0 {
					t.Fatalf("exit code %d: %s", code, stderr)
				}
				got := map[string]string{}
				decode(t, stdout, &got)
				if len(got) < 5 {
					t.Errorf("too little tried: %v", got)
				}
				var ws syscall.WaitStatus
				if pid, err := syscall.Wait4(bystander.Process.Pid, &ws, syscall.WNOHANG, nil); err != nil || pid != 0 {
					t.Errorf("a process of the caller's group ended: %v, signal %v", err, ws.Signal())
				}
				if nice, err := syscall.Getpriority(syscall.PRIO_PROCESS, bystander.Process.Pid); err != nil || nice != before {
					t.Errorf("a process of the caller's group was slowed: %d, %d before, %v", nice, before, err)
				}
			})
		}
	})
}
